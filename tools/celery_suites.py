"""Celery's integration tests, with the result backends and queues that they are run with."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suites import CACHE, ROOT, PytestSuite, run

REDIS = CACHE / "redis"
#: Redis with its libraries; Debian's redis-server is a link to what is in redis-tools.
REDIS_PACKAGES = (
    "redis-server", "redis-tools", "libatomic1", "libc6", "libcap2", "libgcc-s1", "libjemalloc2", "liblua5.1-0",
    "liblzf1", "libssl3t64", "libstdc++6", "libsystemd0", "libzstd1", "lua-bitop", "lua-cjson", "zlib1g",
)  # fmt: skip
#: What goes by the broker: not the tests of result backends, of memory, and of the transport to Redis.
TESTS = tuple(
    f"t/integration/test_{name}.py"
    for name in (
        "beat", "canvas", "group_chains", "inspect", "loader", "security", "serialization", "tasks", "worker",
    )
)  # fmt: skip


@dataclass(frozen=True)
class CelerySuite(PytestSuite):
    """Celery's integration tests, with one result backend."""

    tests: tuple[str, ...] = TESTS
    backend: str = "rpc://"
    #: What the tests' integration-tests-config.json says.
    settings: Mapping[str, Any] = field(default_factory=dict)

    def fetch(self, folder: Path, python: Path) -> None:
        super().fetch(folder, python)
        (folder / "integration-tests-config.json").write_text(json.dumps(dict(self.settings)))
        if self.backend.startswith("redis") and not REDIS.exists():
            part = REDIS.with_suffix(".part")
            run(ROOT / "tools" / "fetch-debian", part, "trixie", *REDIS_PACKAGES)
            run(ROOT / "tools" / "fetch-debian", "--loader", part, part / "usr" / "bin" / "redis-check-rdb")
            part.rename(REDIS)

    @property
    def environment(self) -> dict[str, str]:
        return {"TEST_BROKER": "pyamqp://", "TEST_BACKEND": self.backend}

    @contextlib.contextmanager
    def _redis(self) -> Iterator[None]:
        command = [REDIS / "usr" / "bin" / "redis-server", "--save", "", "--appendonly", "no"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            yield
        finally:
            server.terminate()
            server.wait(30)

    def beside(self) -> contextlib.AbstractContextManager[object]:
        return self._redis() if self.backend.startswith("redis") else super().beside()
