"""Status page of a broker over HTTP on this machine: JSON, and a page for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fairsched.cli.httpserver import HttpServer, Page

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>fairsched broker</title>
<style>
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em; color: #222; background: #fff; }
table { border-collapse: collapse; margin: 0 0 2em; }
caption { text-align: left; font-weight: 600; padding: .5em 0; }
th, td { padding: .2em 1em .2em 0; border-bottom: 1px solid #ddd; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
#problem { color: #a00; }
</style>
</head>
<body>
<h1>fairsched broker</h1>
<p id="summary"></p>
<p id="problem" role="alert"></p>
<div id="tables"></div>
<script>
"use strict";
const COUNTERS = ["published", "delivered", "acknowledged"];
const TABLES = ["queues", "consumers"];
let before = null;
let lastTime = 0;

function rates(row, elapsed) {
  // Per second, from two looks at the counters.
  const earlier = before && before.queues.find((one) => one.vhost === row.vhost && one.name === row.name);
  const found = {...row};
  for (const counter of COUNTERS) {
    if (!(counter in row)) continue;
    delete found[counter];
    found[counter + "/s"] = earlier && elapsed > 0 ? Math.round((row[counter] - earlier[counter]) / elapsed) : 0;
  }
  return found;
}

function text(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "object") return Object.keys(value).length ? JSON.stringify(value) : "";
  return typeof value === "number" ? value.toLocaleString("en") : String(value);
}

function table(name, rows) {
  const made = document.createElement("table");
  made.id = name;
  made.createCaption().textContent = name + " (" + rows.length + ")";
  const columns = [...new Set(rows.flatMap(Object.keys))];
  const head = made.createTHead().insertRow();
  for (const column of columns) {
    const cell = document.createElement("th");
    cell.textContent = column;
    head.append(cell);
  }
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const column of columns) {
      const cell = line.insertCell();
      cell.textContent = text(row[column]);
      if (typeof row[column] === "number") cell.className = "number";
    }
  }
  return made;
}

function show(now) {
  const time = performance.now() / 1000;
  const elapsed = time - lastTime;
  const shown = {...now, queues: (now.queues || []).map((row) => rates(row, elapsed))};
  const rest = Object.entries(now).filter(([name]) => !TABLES.includes(name));
  document.getElementById("summary").textContent = rest.map(([name, value]) => name + ": " + text(value)).join(" · ");
  document.getElementById("tables").replaceChildren(
    ...TABLES.filter((name) => name in shown).map((name) => table(name, shown[name])));
  before = now;
  lastTime = time;
}

async function look() {
  const problem = document.getElementById("problem");
  try {
    const answer = await fetch("status.json", {cache: "no-store"});
    if (!answer.ok) throw new Error("HTTP " + answer.status);
    show(await answer.json());
    problem.textContent = "";
  } catch (error) {
    problem.textContent = "The broker does not answer: " + error.message;
  }
  setTimeout(look, 1000);
}
look();
</script>
</body>
</html>
"""


class StatusPage(HttpServer):
    """An HTTP server that shows a broker's status, on 127.0.0.1.

    Parameters
    ----------
    status : callable
        Returns what to show, as an object for JSON: `fairsched.Broker.status`.
    port : int
        Where to listen; 0 for any free port.

    Raises
    ------
    OSError
        If the port is taken.

    Notes
    -----
    ``/`` is a page that refreshes itself each second, ``/status.json`` the object, ``/metrics`` what Prometheus
    takes of it, where prometheus_client is installed. Only this machine can reach it.
    """

    def __init__(self, status: Callable[[], Mapping[str, Any]], port: int = 0) -> None:
        super().__init__(
            {
                "/": lambda: Page(_PAGE, "text/html"),
                "/status.json": lambda: Page(json.dumps(status()), "application/json"),
                "/metrics": lambda: _metrics(status),
            },
            port,
        )


def _metrics(status: Callable[[], Mapping[str, Any]]) -> Page:
    try:
        from fairsched.broker.metrics import BrokerCollector
        from fairsched.cli.metricspage import exposition
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        reason = "this needs prometheus_client: pip install 'fairsched[metrics]'\n"
        return Page(reason, code=HTTPStatus.NOT_IMPLEMENTED)
    return exposition(BrokerCollector(status))
