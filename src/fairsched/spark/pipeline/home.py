"""How Spark starts quickly: from a home of links, with an archive of its classes. Both stay in the user's cache.

Spark puts its Python sources before all others, as archives, and each of the processes that a query starts compiles
them anew: 1.5 s of processor time to import a planner, 0.4 s from files. In the home, folders of links stand in their
place.

A driver loads thousands of classes for its first query, which is much of what that costs. The JVM of the first run
leaves them in an archive when it ends, and those of the following runs map it.

Source: "Class Data Sharing" in the manual of `java`, -XX:ArchiveClassesAtExit.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

__all__ = ["is_whole", "leave_outputs", "link", "quick_start"]

#: Where one of these is set, Spark has been set up by somebody and stays as it is. YARN, which needs one of the last
#: two, also copies the archives out of the home.
_SET_UP = {
    "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "MASTER", "PYSPARK_SUBMIT_ARGS", "HADOOP_CONF_DIR", "YARN_CONF_DIR",
}  # fmt: skip
#: Where one of these is set, the JVM has options of the user's own, with which it may refuse to leave an archive.
_OPTIONS = {"SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"}
_OPTIONS |= {"spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"}
#: Seconds after which the JVM that has begun to write an archive must have ended; until then no other begins.
_ABANDONED = 3600


def quick_start(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables with which Spark starts quickly; make what they name, if it is not there yet.

    Parameters
    ----------
    environ : mapping of str to str
        The environment: whether Spark has been set up, where its Java is, and where the cache is (``XDG_CACHE_HOME``).
    settings : mapping of str to str
        The session's configuration.

    Returns
    -------
    dict of str to str
        Empty if Spark is to start as usual: it has been set up, runs on a cluster, or was not installed by pip, or the
        cache cannot be written.

    Notes
    -----
    Processes that do this at once do not disturb each other, nor does one that is killed: what is in the cache gets its
    name when it is whole. A JVM that cannot use the archive does without it.
    """
    import pyspark

    spark = _folder("pyspark")
    master = settings.get("spark.master") or settings.get("spark.remote") or "local"
    if not master.startswith("local") or not _SET_UP.isdisjoint(environ) or not (spark / "jars").exists():
        return {}
    try:
        cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fairsched").absolute()
        installed = f"{spark} {(spark / 'jars').stat().st_mtime_ns}"
        home = cache / f"spark-{pyspark.__version__}-{_digest(installed)}"
        if any(character in f'{os.pathsep}"\\' for character in str(home)):
            return {}  # it could not be said in a class path, or among options
        if not home.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                link(Path(folder, "home")).rename(home)
        found = {"SPARK_HOME": str(home)}
        if _OPTIONS.isdisjoint({*environ, *settings}) and (java := _java(environ)) is not None:
            found.update(_archive_options(home, java))
    except (OSError, RuntimeError):  # without a home of the user's own, `Path.home` raises the latter
        return {}
    return found


def leave_outputs() -> None:
    """Close the standard output and error of the JVM, which may go on for some seconds to write an archive.

    Whoever reads what the command prints would wait for it: it has inherited both. Java puts /dev/null in their place.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    if jvm is None:  # a server of Spark Connect elsewhere
        return
    try:
        jvm.java.lang.System.out.close()
        jvm.java.lang.System.err.close()
    except (OSError, Py4JError):  # it has ended
        pass


def link(home: Path) -> Path:
    """Make a home in a folder that is not there yet; what a local cluster writes goes into it, not beside Spark."""
    home.mkdir()
    spark = _folder("pyspark")
    # A configuration may come later.
    for name in {*os.listdir(spark), "conf"} - {"python", "work"}:
        (home / name).symlink_to(spark / name)
    for archive in (spark / "python" / "lib").glob("*.zip"):
        package = re.split(r"[.-]", archive.name)[0]
        folder = home / "python" / "lib" / archive.name
        folder.mkdir(parents=True)
        (folder / package).symlink_to(_folder(package))
    return home


def _archive_options(home: Path, java: str) -> dict[str, str]:
    """Have the JVM use the archive of this Java, or leave one when it ends, unless another JVM is writing it."""
    archive, written = None, False
    for file in home.parent.glob(f"{home.name}-*"):
        # With its size, since a JVM crashes with an archive that has been cut off.
        name = home.with_name(f"{home.name}-{java}.{file.stat().st_size}.jsa")
        if file == name:
            archive = name
        elif file.match(f"{home.name}-{java}.*.new") and is_whole(file):
            archive = file.replace(name)
        elif file.stat().st_mtime < time.time() - _ABANDONED:
            file.unlink()
        else:
            written |= file.suffix == ".new"
    # It compares checksums before it uses the archive, and says nothing of one that it refuses.
    if archive is not None:
        return {"SPARK_SUBMIT_OPTS": f'"-XX:SharedArchiveFile={archive}" -XX:+VerifySharedSpaces -Xlog:disable'}
    if written:
        return {}
    return {"SPARK_SUBMIT_OPTS": f'"-XX:ArchiveClassesAtExit={home}-{java}.{os.getpid()}.new" -Xlog:disable'}


def is_whole(archive: Path) -> bool:
    """Whether its JVM has finished: it writes the header last. If so, have it on the disk."""
    with archive.open("rb") as file:
        if not file.read(4).strip(b"\0"):
            return False
        os.fsync(file.fileno())
    return True


def _java(environ: Mapping[str, str]) -> str | None:
    """Name the Java that Spark finds, if it has an archive of its own classes, without which it makes no other."""
    program = shutil.which(os.path.join(environ["JAVA_HOME"], "bin", "java") if environ.get("JAVA_HOME") else "java")
    if program is None:
        return None
    own = Path(program).resolve().parents[1] / "lib" / "server" / "classes.jsa"
    return _digest(f"{own} {own.stat().st_mtime_ns}") if own.exists() else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _folder(package: str) -> Path:
    file = import_module(package).__file__
    assert file is not None
    return Path(file).parent
