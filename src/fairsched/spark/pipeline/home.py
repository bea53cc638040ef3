"""Start Spark quickly: a SPARK_HOME of symbolic links, and an archive of Java classes, both in the user's cache.

Spark puts its Python sources first on the path, as zip archives, and each process that a query starts compiles them
again: importing a planner takes 1.5 s of processor time, 0.4 s from files. The home replaces the archives by folders of
links.

A driver loads thousands of classes for its first query, which is much of its cost. The JVM of the first run writes them
to an archive when it ends, and the JVMs of later runs map it.

Source: "Class Data Sharing" in the manual of `java`, -XX:ArchiveClassesAtExit.
"""

from __future__ import annotations

import hashlib
import locale
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

__all__ = ["is_whole", "leave_outputs", "link", "quick_start"]

#: If one of these is set, the user has set up Spark, which is then left alone. YARN, which needs one of the last two,
#: also copies the archives out of the home.
_SET_UP = {
    "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "MASTER", "PYSPARK_SUBMIT_ARGS", "HADOOP_CONF_DIR", "YARN_CONF_DIR",
}  # fmt: skip
#: If one of these is set, the JVM has options of the user, with which it may refuse to write an archive.
_OPTIONS = {"SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"}
_OPTIONS |= {"spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"}
#: Maximum time in seconds that a JVM may take to write an archive; until then no other starts to.
_ABANDONED = 3600
#: Minimum free space in bytes for an archive of 190 MB; with less, each JVM would try to write one and fail.
_ROOM = 1 << 28


def quick_start(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables with which Spark starts quickly, and create the files they name if needed.

    Parameters
    ----------
    environ : mapping of str to str
        Environment variables: the user's setup of Spark, Java's home, and the cache (``XDG_CACHE_HOME``).
    settings : mapping of str to str
        The session's configuration.

    Returns
    -------
    dict of str to str
        The variables; empty if Spark should start as usual: it was set up by the user, runs on a cluster or was not
        installed by pip, or the cache is not writable, or other users can write to it.

    Notes
    -----
    Several processes may do this at the same time, and may be killed: a file in the cache gets its name only when it is
    complete. If parts of a home were removed, for example by a program that deletes old files, the home is created
    again. A JVM that cannot use the archive starts without it.
    """
    import pyspark

    spark = _folder("pyspark")
    master = settings.get("spark.master") or settings.get("spark.remote") or "local"
    if not master.startswith("local") or not _SET_UP.isdisjoint(environ) or not (spark / "jars").exists():
        return {}
    found: dict[str, str] = {}
    try:
        cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fairsched").absolute()
        home = cache / _name_of(spark, pyspark.__version__)
        if any(character in f'{os.pathsep}"\\' for character in str(home)):
            return {}  # such a path cannot be part of a class path, or of options
        str(home).encode(locale.getencoding())  # Java encodes file names with it
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_own(cache):
            return {}
        if not _has_all(home):
            _make(home)
        found["SPARK_HOME"] = str(home)
        if _OPTIONS.isdisjoint({*environ, *settings}) and (java := _java(environ)) is not None:
            found.update(_archive_options(home, java))
    # `Path.home` raises RuntimeError if the user has no home directory, an unknown encoding LookupError.
    except (OSError, RuntimeError, UnicodeError, LookupError):
        pass
    return found


def leave_outputs() -> None:
    """Close the standard output and error of the JVM, which may run for some more seconds to write an archive.

    It has inherited both, so a reader of the command's output would wait for it. Java replaces them by /dev/null.
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
    """Create a home in a new folder; a local cluster writes its files there instead of beside Spark."""
    home.mkdir()
    for place, target in _links().items():
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        (home / place).symlink_to(target)
    return home


def _name_of(spark: Path, version: str) -> str:
    """Return the name of the home of an installed Spark; it changes if Spark is installed again."""
    installed = f"{spark} {(spark / 'jars').stat().st_mtime_ns}"
    return f"spark-{version}-{_digest(installed)}"


def _is_own(cache: Path) -> bool:
    """Return whether no other user can put files there, which would be executed as this user."""
    if not hasattr(os, "geteuid"):  # on Windows the cache is in the user's profile
        return True
    found = cache.stat()
    return found.st_uid in {0, os.geteuid()} and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _has_all(home: Path) -> bool:
    """Return whether a home exists and is complete."""
    return all((home / place).exists() or not target.exists() for place, target in _links().items())


def _links() -> dict[str, Path]:
    """Return the target of each link of a home, by the path of the link."""
    spark = _folder("pyspark")
    # A configuration may come later.
    links = {name: spark / name for name in {*os.listdir(spark), "conf"} - {"python", "work", "__pycache__"}}
    for archive in (spark / "python" / "lib").glob("*.zip"):
        package = re.split(r"[.-]", archive.name)[0]
        links[f"python/lib/{archive.name}/{package}"] = _folder(package)
    return links


def _make(home: Path) -> None:
    """Create a home, replacing an incomplete one, and delete archives of Sparks that are no longer installed."""
    with tempfile.TemporaryDirectory(dir=home.parent) as folder:
        made = link(Path(folder, "home"))
        if os.path.lexists(home):
            home.rename(Path(folder, "damaged"))
        made.rename(home)
    for archive in home.parent.glob("spark-*-*-*"):
        if not _is_installed(home.with_name(archive.name.rpartition("-")[0])):
            archive.unlink(missing_ok=True)


def _is_installed(home: Path) -> bool:
    """Return whether the Spark of a home is still the one that is installed."""
    jars, version = home / "jars", home.name.split("-")[1]
    return jars.exists() and _name_of(jars.readlink().parent, version) == home.name


def _archive_options(home: Path, java: str) -> dict[str, str]:
    """Return JVM options that use the archive of this Java, or write one at exit unless another JVM is writing it."""
    archive, written = None, False
    # Archives come before files that will become archives.
    for file in sorted(home.parent.glob(f"{home.name}-*"), key=lambda found: found.suffix):
        # The name includes the size, since a truncated archive crashes a JVM.
        name = home.with_name(f"{home.name}-{java}.{file.stat().st_size}.jsa")
        if file == name and archive is None:
            archive = name
        elif file.match(f"{home.name}-{java}.*.new") and is_whole(file):
            if archive is None:
                archive = file.replace(name)
            else:
                file.unlink()  # two JVMs started to write at the same time
        elif file.stat().st_mtime < time.time() - _ABANDONED:
            file.unlink()
        else:
            written |= file.suffix == ".new"
    # The JVM verifies checksums before it uses the archive, and silently ignores an invalid one.
    if archive is not None:
        return {"SPARK_SUBMIT_OPTS": f'"-XX:SharedArchiveFile={archive}" -XX:+VerifySharedSpaces -Xlog:disable'}
    if written or not os.access(home.parent, os.W_OK) or shutil.disk_usage(home.parent).free < _ROOM:
        return {}
    return {"SPARK_SUBMIT_OPTS": f'"-XX:ArchiveClassesAtExit={home}-{java}.{os.getpid()}.new" -Xlog:disable'}


def is_whole(archive: Path) -> bool:
    """Return whether the JVM has finished writing the archive (the header comes last); if so, sync it to disk."""
    with archive.open("rb") as file:
        if not file.read(4).strip(b"\0"):
            return False
        os.fsync(file.fileno())
    return True


def _java(environ: Mapping[str, str]) -> str | None:
    """Return a name for Spark's Java; None if it has no archive of its own classes, without which it writes none."""
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
