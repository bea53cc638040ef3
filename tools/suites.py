"""Tests of AMQP clients, each at one version: where they come from, and the command that runs them."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import urllib.request
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "peer-suites"


@dataclass(frozen=True)
class Suite(ABC):
    """Tests of a peer at one version."""

    name: str
    version: str

    @property
    def environment(self) -> dict[str, str]:
        """What its tests read, besides what all suites have."""
        return {}

    def beside(self) -> contextlib.AbstractContextManager[object]:
        """Run what its tests need besides a broker."""
        return contextlib.nullcontext()

    @property
    def folder(self) -> Path:
        """Where its sources are once they are complete."""
        return CACHE / "sources" / f"{self.name.replace('-', '_')}-{self.version}"

    @abstractmethod
    def fetch(self, folder: Path, python: Path) -> None:
        """Put the sources, and what they alone need, into an empty folder."""

    @abstractmethod
    def command(self, broker: str, python: Path, results: Path, failed: list[str]) -> list[str]:
        """Return the command that runs the tests; all of them if none `failed` before."""


@dataclass(frozen=True)
class Repository:
    """A version of a repository."""

    url: str
    commit: str

    def check_out(self, folder: Path) -> None:
        run("git", "init", "-q", folder)
        run("git", "-C", folder, "fetch", "-q", "--depth=1", self.url, self.commit)
        run("git", "-C", folder, "-c", "advice.detachedHead=false", "checkout", "-q", self.commit)


@dataclass(frozen=True)
class PytestSuite(Suite):
    """Tests that pytest runs."""

    #: Files or folders of pytest.
    tests: tuple[str, ...] = ()
    #: The package that the tests are of, if it is not named like the suite.
    package: str = ""
    #: A word in the names of what is not even tried on the embedded broker, since it waits long for what is not there.
    not_here: str = ""
    #: Where the tests are, if not in the sdist of the Python package index.
    repository: Repository | None = None
    #: A file of tools that becomes the tests' conftest.py.
    conftest: str = ""
    #: More options of pytest.
    options: tuple[str, ...] = ()

    def fetch(self, folder: Path, python: Path) -> None:
        project = self.package or self.name
        if self.repository:
            self.repository.check_out(folder)
        else:
            run(
                python, "-m", "pip", "--disable-pip-version-check", "-qq", "download", "--no-deps", "--no-binary",
                project, "-d", folder, f"{project}=={self.version}",
            )  # fmt: skip
            [archive] = folder.glob("*.tar.gz")
            run("tar", "-xzf", archive, "-C", folder, "--strip-components=1")
        if self.conftest:
            shutil.copy(ROOT / "tools" / self.conftest, folder / "conftest.py")

    def command(self, broker: str, python: Path, results: Path, failed: list[str]) -> list[str]:
        left_out = ["-k", f"not {self.not_here}"] if self.not_here and broker == "embedded" else []
        # pytest knows itself what failed.
        last_failed = ["--last-failed", "--last-failed-no-failures=none"] if failed else []
        # Python's tracebacks: for pytest's own the source is parsed, which after a time-out can fail in Python 3.11,
        # and end the run ("AST constructor recursion depth mismatch").
        return [
            str(python), "-m", "pytest", "-q", "--tb=native", "--timeout=150", f"--junitxml={results}", *last_failed,
            "-o", f"cache_dir={results.parent}/{self.name}-cache", *left_out, *self.options,
            *self.tests,
        ]  # fmt: skip


@dataclass(frozen=True)
class NodeSuite(Suite):
    """Tests that Node.js runs."""

    repository: Repository
    #: What the tests need.
    package: str

    def fetch(self, folder: Path, python: Path) -> None:
        self.repository.check_out(folder)
        options = ["--silent", "--no-save", "--no-package-lock", "--ignore-scripts"]
        run("npm", "install", *options, "--prefix", folder, self.package)

    def command(self, broker: str, python: Path, results: Path, failed: list[str]) -> list[str]:
        # Its own script allows one second, which Node takes for each test and for each file of tests.
        return [
            "node", "--test", "--test-timeout=600000", "--test-reporter=junit",
            f"--test-reporter-destination={results}",
        ]  # fmt: skip


@dataclass(frozen=True)
class JUnitSuite(Suite):
    """Tests of JUnit 4, compiled against the packages of a release of Debian."""

    archive: str
    sha256: str
    release: str
    packages: tuple[str, ...]
    #: Files of these packages, in usr/share/java.
    jars: tuple[str, ...]
    #: Patterns of the files to compile, without suffix, below `root`.
    root: str
    tests: tuple[str, ...]
    #: Classes that are not compiled, and methods that are not run.
    left_out: tuple[str, ...]

    #: Seconds for a test.
    LIMIT = 60

    def fetch(self, folder: Path, python: Path) -> None:
        run(ROOT / "tools" / "fetch-debian", folder, self.release, *self.packages)
        packed = folder / "source.tar.gz"
        with urllib.request.urlopen(self.archive, timeout=60) as answer:
            packed.write_bytes(answer.read())
        found = hashlib.sha256(packed.read_bytes()).hexdigest()
        if found != self.sha256:
            raise RuntimeError(f"the SHA-256 of {self.archive} must be {self.sha256}, got {found}")
        run("tar", "-xzf", packed, "-C", folder, "--strip-components=1")
        sources = folder / "src" / "test" / "java"
        options = ["-Xlint:none", "-proc:none", "-encoding", "UTF-8", "-sourcepath", sources]
        files = [sources / f"{name.replace('.', '/')}.java" for name in self.classes(folder)]
        run("javac", *options, "-cp", self.class_path(folder), "-d", folder / "classes", *files)

    def class_path(self, folder: Path) -> str:
        jars = (f"usr/share/java/{name}.jar" for name in self.jars)
        return ":".join(str(folder / part) for part in ("classes", "src/test/resources", *jars))

    def classes(self, folder: Path) -> list[str]:
        """Return the names of the classes to compile; some have no tests."""
        sources = folder / "src" / "test" / "java"
        files = sorted(file for tests in self.tests for file in sources.glob(f"{self.root}/{tests}.java"))
        names = [".".join(file.relative_to(sources).with_suffix("").parts) for file in files]
        return [name for name in names if name.rpartition(".")[2] not in self.left_out]

    def command(self, broker: str, python: Path, results: Path, failed: list[str]) -> list[str]:
        names = ["#".join(name.rsplit(".", 1)) for name in failed] or self.classes(self.folder)
        left_out = [f"-{name.replace('.', '#')}" for name in self.left_out if "." in name]
        program = ["java", "-cp", self.class_path(self.folder), str(ROOT / "tools" / "RunTests.java")]
        return [*program, str(results), str(self.LIMIT), *left_out, *names]


def run(*command: str | Path, **options: object) -> None:
    subprocess.run([str(part) for part in command], check=True, **options)  # type: ignore[call-overload]


SUITES: list[Suite] = [
    PytestSuite(
        "pika", "1.4.4", ("tests/acceptance",),
        repository=Repository("https://github.com/pika/pika", "60fee4203a30d5dfa0500857cea6a65ef571d46c"),
    ),
    PytestSuite("aio-pika", "10.2.1", ("tests",), not_here="test_amqps"),
    PytestSuite("aiormq", "7.2.4", ("tests",), not_here="amqps", conftest="aiormq_conftest.py"),
    PytestSuite("kombu", "5.7.0", ("t/integration/test_py_amqp.py",)),
    PytestSuite("amqp", "5.4.2", ("t/integration",)),
    NodeSuite(
        "amqplib", "2.0.1",
        Repository("https://github.com/amqp-node/amqplib", "7706d75dd5a63b45c4fca64b84f2cdf513c62288"),
        package="claire@0.4.1",
    ),
    JUnitSuite(
        "rabbitmq-java-client", "5.0.0",
        archive="http://deb.debian.org/debian/pool/main/r/rabbitmq-java-client/rabbitmq-java-client_5.0.0.orig.tar.gz",
        sha256="23c185a4b241c60223e8a800472d674f3d8e8fc5688bf99abe6ccdfd55e64aeb",
        release="bookworm", root="com/rabbitmq/client/test",
        packages=(
            "librabbitmq-client-java", "junit4", "libhamcrest-java", "libmockito-java", "libbyte-buddy-java",
            "libobjenesis-java", "libdropwizard-metrics-java", "libcommons-cli-java", "liblogback-java",
            "libslf4j-java",
        ),
        jars=(
            "amqp-client", "junit4", "hamcrest-all", "hamcrest", "mockito-core", "byte-buddy", "byte-buddy-agent",
            "objenesis", "metrics-core", "commons-cli", "logback-classic", "logback-core", "slf4j-api",
        ),
        tests=(
            "*", "functional/*", "server/AlternateExchangeEquivalence", "server/PriorityQueues",
            "server/XDeathHeaderGrowth",
        ),
        # docs/reference/peer-suites.md has the reasons.
        left_out=(
            "ClientTests", "FunctionalTests", "ConnectionRecovery", "LambdaCallbackTest", "Metrics", "Policies",
            "PerMessageTTL.restartingExpiry", "PerQueueVsPerMessageTTL.restartingExpiry",
            "UserIDHeader.impersonatedUserId",
        ),
    ),
]  # fmt: skip
#: What the tests in Python need besides their peers.
NEEDED = [
    "pytest==9.2.0", "pytest-timeout==2.4.0", "aiomisc==18.0.37", "aiomisc-pytest==2.0.0",
    "hypothesis==6.170.15", "gevent==26.9.0", "tornado==6.6.1", "twisted==26.10.0", "shortuuid==1.0.13",
    "timeout-decorator==0.5.0",
]  # fmt: skip
