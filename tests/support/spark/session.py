"""Starting Spark for tests: where Java is, and settings that make small queries quick."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

REMEDY = (
    "Java 17 or newer is needed for the tests on Spark and was not found. On Debian or Ubuntu: apt-get install "
    "openjdk-17-jre-headless ('make servers' does it for root); elsewhere set JAVA_HOME. 'make test-quick' runs the "
    "tests that need no server."
)

#: For a JVM that lives for a minute: the compiler that costs least, which halves the processor time of a small query
#: (32 and 15 s, measured side by side); and threads that collect garbage beside each other are of no use.
BRIEF_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def find_java() -> str:
    """Return the home of a Java that Spark runs on: JAVA_HOME, what Debian installs, or the one on the PATH."""
    places = [os.environ.get("JAVA_HOME", ""), *sorted(map(str, Path("/usr/lib/jvm").glob("java-17-*"))), ""]
    for place in places:
        program = f"{place}/bin/java" if place else "java"
        try:
            done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        found = re.search(r'version "(\d+)', done.stderr)
        if found and int(found[1]) >= 17:
            return place or _home_of("java")
    raise RuntimeError(REMEDY)


def _home_of(program: str) -> str:
    import shutil

    found = shutil.which(program)
    assert found is not None
    return str(Path(found).resolve().parents[1])


def start(master: str, *, remote: bool = False, **settings: str) -> Any:
    """Start a session, by Spark Connect if it is `remote`; underscores in the names of settings stand for dots."""
    from pyspark.sql import SparkSession

    named = SparkSession.builder.appName("fairsched-tests")
    builder = named.remote(master) if remote else named.master(master)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": BRIEF_JVM,
        "spark.executor.extraJavaOptions": BRIEF_JVM,
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.metricsEnabled": "false",
    }
    for name, value in {**defaults, **{key.replace("_", "."): value for key, value in settings.items()}}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
