"""An S3 server in a process of its own: moto's, spoken to over HTTP, with its buckets in memory.

Usage: s3server.py; prints its port, and ends when its standard input closes.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

REMEDY = (
    "moto and s3fs are needed to test spools on S3, and were not found: 'make build' installs them, and so does pip "
    "install --group build"
)
#: Where the header If-None-Match is ignored, as by servers that are older than it.
CARELESS = "careless"
SECRET = "hush-hush"
_numbers = itertools.count()


class S3Server:
    """Started when it is made; ended by `close`."""

    def __init__(self) -> None:
        try:
            import moto.server  # noqa: F401
            import s3fs  # noqa: F401
        except ImportError as error:
            raise RuntimeError(REMEDY) from error
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    @property
    def environment(self) -> dict[str, str]:
        """Return the options that lead s3fs here, in any process."""
        return {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "reader",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def new_bucket(self, name: str = "") -> str:
        """Make a bucket, of this name or one that no other test has, and return its URL."""
        import boto3

        name = name or f"bucket-{next(_numbers)}"
        client = boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{self.port}", aws_access_key_id="maker",
            aws_secret_access_key=SECRET, region_name="us-east-1",
        )  # fmt: skip
        client.create_bucket(Bucket=name)
        client.close()
        return f"s3://{name}"

    def close(self) -> None:
        self._process.communicate(timeout=30)


def application() -> Callable[..., Iterable[bytes]]:
    """moto's application, but that a put is done at once."""
    from moto.server import DomainDispatcherApplication, create_backend_app

    moto = DomainDispatcherApplication(create_backend_app)
    # moto looks whether there is such an object and then puts one; with S3 that is one thing.
    one_at_a_time = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"].startswith(f"/{CARELESS}/"):
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if environ["REQUEST_METHOD"] != "PUT":
            return moto(environ, start_response)
        with one_at_a_time:
            return moto(environ, start_response)

    return answer


def main() -> None:
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_arguments: object) -> None:
            pass

    server = make_server("127.0.0.1", 0, application(), threaded=True, request_handler=Quiet)
    print(server.port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
