"""Stands in for Docker where a peer's tests want a broker in a container of its own.

aio-pika's tests speak Docker's HTTP API: they create a container of a RabbitMQ image, ask which port it has, kill it,
start it again, and run rabbitmqctl in it. Here a container is a broker process of this machine.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

#: Where Docker would listen without TLS.
PORT = 2375


class Container(Protocol):
    """A broker that can be killed and started again."""

    port: int
    tls_port: int

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...
    def control(self, command: str) -> object: ...


class ContainerHost:
    """Docker's API, as far as these tests use it; each container is what `make` makes. Use as a context manager."""

    def __init__(self, make: Callable[[], Container]) -> None:
        self.containers: dict[str, Container] = {}
        self.codes: dict[str, int] = {}
        self.make = make
        host = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                content = json.loads(self.rfile.read(size)) if size else {}
                try:
                    code, found = 200, host.do(self.command, self.path, content)
                except Exception as error:
                    code, found = 500, {"message": repr(error)}
                answer = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)

    def __enter__(self) -> ContainerHost:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        for container in self.containers.values():
            container.close()

    def do(self, method: str, path: str, content: dict[str, Any]) -> object:
        """Do what a request asks for, and return the answer."""
        if path.startswith("/images/create"):
            return {}
        if path == "/containers/create":
            name = f"c{len(self.containers)}"
            self.containers[name] = self.make()
            return {"Id": name}
        if found := re.fullmatch(r"/exec/(\w+)/(start|json)", path):
            return {"Running": False, "ExitCode": self.codes[found[1]]}
        found = re.fullmatch(r"/containers/(\w+)(?:/(start|kill|json|exec))?", path)
        if not found:
            raise ValueError(f"nothing here does {method} {path}")
        container, verb = self.containers[found[1]], found[2]
        if verb == "json":
            ports = {"5672/tcp": container.port, "5671/tcp": container.tls_port}
            return {"NetworkSettings": {"Ports": {name: [{"HostPort": str(port)}] for name, port in ports.items()}}}
        if verb == "exec":
            name = f"e{len(self.codes)}"
            try:
                container.control(content["Cmd"][1])
                self.codes[name] = 0
            except Exception:
                self.codes[name] = 1
            return {"Id": name}
        {"start": container.start, "kill": container.kill, None: container.close}[verb]()
        return {}
