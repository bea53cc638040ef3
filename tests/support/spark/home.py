"""Java, and the folder with the home from which Spark starts quickly in tests, see `fairsched.spark.pipeline.home`.

Beside the home that all tests share is an archive of the classes that Spark loads, see `classes.py`.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path

import pyspark
from support.distributions import ROOT

REMEDY = (
    "Java 17 or newer is needed for the tests on Spark and was not found. On Debian or Ubuntu: apt-get install "
    "openjdk-17-jre-headless ('make servers' does it for root); elsewhere set JAVA_HOME. 'make test-quick' runs the "
    "tests that need no server."
)

#: For a JVM that lives for a minute: the compiler that costs least, which halves the processor time of a small query
#: (32 and 15 s, measured side by side); and threads that collect garbage beside each other are of no use.
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@functools.cache
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


def with_brief_jvm(folder: Path) -> Path:
    """Make a Java home whose JVMs have the options above without being given any, and return it."""
    java = Path(find_java())
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").symlink_to(java / "lib")
    program = folder / "bin" / "java"
    program.write_text(f'#!/bin/sh\nexec {java}/bin/java {BRIEF} "$@"\n')
    program.chmod(0o755)
    return folder


def shared() -> Path:
    """The folder with the home that all tests share, and the archive of classes, for this Spark and this Java."""
    release = Path(find_java(), "release")
    found = re.search(r'JAVA_RUNTIME_VERSION="([^"]+)"', release.read_text() if release.exists() else "")
    return ROOT / "build" / f"spark-{pyspark.__version__}-java-{found[1] if found else 'unknown'}"


def brief_jvm() -> str:
    """Options of a JVM that lives for a minute; with the archive of classes, if that has been made."""
    archive = shared() / "classes.jsa"
    # A JVM with another class path does without it, and need not say so.
    return f"{BRIEF} -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else BRIEF
