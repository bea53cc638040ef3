"""The home of links from which Spark starts for a pipeline, and the archive of its classes; `test_job` runs some."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyspark
import pytest
from support.spark.home import find_java

from fairsched.spark.pipeline import home as module
from fairsched.spark.pipeline.home import quick_start

SPARK = Path(pyspark.__file__).parent
#: Makes a home, and is killed where some of the links are made.
KILLED = """
import os, signal, sys
from pathlib import Path
from fairsched.spark.pipeline.home import quick_start

made = []
def symlink_to(link, target, _make=Path.symlink_to):
    _make(link, target)
    made.append(link)
    if len(made) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
Path.symlink_to = symlink_to
quick_start({"XDG_CACHE_HOME": sys.argv[1]}, {})
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path), "JAVA_HOME": find_java()}


def check(found: dict[str, str], cache: Path) -> Path:
    """A home in the cache with all that Spark has."""
    home = Path(found["SPARK_HOME"])
    assert home.parent == cache / "fairsched"
    spark = {place.name for place in SPARK.iterdir()} | {"conf"}
    assert {place.name for place in home.iterdir()} == spark - {"work", "__pycache__"}
    for name in ("bin", "jars", "conf"):
        assert (home / name).resolve() == SPARK / name
    return home


def test_processes_import_from_compiled_files(environ: dict[str, str], tmp_path: Path) -> None:
    home = check(quick_start(environ, {"spark.master": "local[2]"}), tmp_path)
    archives = [str(home / "python" / "lib" / place.name) for place in (SPARK / "python" / "lib").glob("*.zip")]
    assert len(archives) == 2
    code = (
        "import py4j.protocol, pyspark.daemon as m; print(m.__file__, m.__cached__, py4j.protocol.__file__, sep='\\n')"
    )
    # Where images forbid Python to write compiled files, there are none.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables | {"PYTHONPATH": os.pathsep.join(archives)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    source, compiled, other = map(Path, done.stdout.splitlines())
    assert source.is_relative_to(home)
    assert compiled.resolve().is_relative_to(SPARK)
    assert compiled.exists()
    assert other.is_relative_to(home)


def test_the_home_is_made_once(environ: dict[str, str], tmp_path: Path) -> None:
    first = check(quick_start(environ, {"spark.master": "local[2]"}), tmp_path)
    made = first.stat()
    assert check(quick_start(environ, {"spark.remote": "local"}), tmp_path) == first
    assert (first.stat().st_ino, first.stat().st_ctime_ns) == (made.st_ino, made.st_ctime_ns)


def test_the_cache_is_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    check(quick_start({}, {}), tmp_path / ".cache")


def test_several_make_it_at_once(environ: dict[str, str], tmp_path: Path) -> None:
    found: list[dict[str, str]] = []
    ready = threading.Barrier(8)

    def make() -> None:
        ready.wait(60)
        found.append(quick_start(environ, {}))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    # A process that is not the first to finish it may start as usual.
    [home] = {check(one, tmp_path) for one in found if one}
    assert list((tmp_path / "fairsched").iterdir()) == [home]


def test_one_that_is_killed_leaves_no_half_of_a_home(environ: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    [rest] = (tmp_path / "fairsched").iterdir()
    assert check(quick_start(environ, {}), tmp_path) != rest


@pytest.mark.parametrize("lost", ["bin", "jars", "python", "python/lib/*/*", "*", "."])
def test_a_home_that_lost_something_is_made_again(lost: str, environ: dict[str, str], tmp_path: Path) -> None:
    """As where a program removes files that are old: links are, one by one."""
    home = check(quick_start(environ, {}), tmp_path)
    for place in [*home.glob(lost)] if lost != "." else [home]:
        shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
    if lost == ".":
        home.write_text("no folder")
    assert check(quick_start(environ, {}), tmp_path) == home
    assert [len([*place.iterdir()]) for place in (home / "python" / "lib").iterdir()] == [1, 1]
    assert list((tmp_path / "fairsched").iterdir()) == [home]


@pytest.mark.parametrize("mode", [0o777, 0o770, None])
def test_a_cache_that_others_can_write_is_not_used(
    mode: int | None, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contents of the file are executed."""
    cache = check(quick_start(environ, {}), tmp_path).parent
    assert cache.stat().st_mode & 0o777 == 0o700
    if mode is not None:
        cache.chmod(mode)
    elif os.geteuid() == 0:
        os.chown(cache, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert quick_start(environ, {}) == {}


@pytest.mark.parametrize(("encoding", "used"), [("C", False), ("C.UTF-8", True)])
def test_a_path_that_java_cannot_name_is_not_used(
    encoding: str, used: bool, environ: dict[str, str], tmp_path: Path
) -> None:
    code = (
        "import sys; from fairsched.spark.pipeline.home import quick_start; "
        "print(len(quick_start({'XDG_CACHE_HOME': sys.argv[1]}, {})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "jürgen's files")],
        env={**os.environ, "LC_ALL": encoding}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert (int(done.stdout) > 0) == used
    if used:
        found = quick_start({**environ, "XDG_CACHE_HOME": str(tmp_path / "jürgen's files")}, {})
        assert launcher(found, LC_ALL=encoding)[0] == 0


@pytest.mark.parametrize("place", ["file", "/proc/nowhere", "a:b", 'a"b'])
def test_a_cache_that_cannot_be_used_is_no_error(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert quick_start({"XDG_CACHE_HOME": str(tmp_path / place)}, {}) == {}


@pytest.mark.parametrize(
    "name", ["SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "YARN_CONF_DIR"]
)
def test_a_spark_that_has_been_set_up_stays_as_it_is(name: str, environ: dict[str, str], tmp_path: Path) -> None:
    assert quick_start({**environ, name: "/opt/spark"}, {}) == {}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["spark.master", "spark.remote"])
@pytest.mark.parametrize("place", ["yarn", "spark://here:7077", "k8s://https://here", "sc://here:15002"])
def test_a_cluster_has_its_own_home(name: str, place: str, environ: dict[str, str], tmp_path: Path) -> None:
    assert quick_start(environ, {name: place}) == {}
    assert not list(tmp_path.iterdir())


def test_options_of_the_user_s_own_are_all_that_the_jvm_gets(environ: dict[str, str]) -> None:
    assert {*quick_start({**environ, "JAVA_TOOL_OPTIONS": "-Xint"}, {})} == {"SPARK_HOME"}
    assert {*quick_start(environ, {"spark.driver.extraJavaOptions": "-Xint"})} == {"SPARK_HOME"}
    assert {*quick_start(environ, {})} == {"SPARK_HOME", "SPARK_SUBMIT_OPTS"}


def test_without_a_java_there_is_no_archive(environ: dict[str, str], tmp_path: Path) -> None:
    assert {*quick_start({**environ, "JAVA_HOME": str(tmp_path)}, {})} == {"SPARK_HOME"}


def launcher(found: dict[str, str], *more: str, **environ: str) -> tuple[int, str]:
    """Run a part of Spark that takes half a second, with the options of its driver; its code and what it said."""
    home = found["SPARK_HOME"]
    done = subprocess.run(
        [f"{find_java()}/bin/java", *shlex.split(found["SPARK_SUBMIT_OPTS"]), *more, "-cp", f"{home}/jars/*",
         "org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "--version"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        env={**os.environ, **environ, "SPARK_HOME": home, "SPARK_SCALA_VERSION": "2.13"},
    )  # fmt: skip
    return done.returncode, done.stdout


def archive_of(found: dict[str, str]) -> Path:
    return Path(shlex.split(found["SPARK_SUBMIT_OPTS"])[0].partition("=")[2])


def test_the_first_jvm_leaves_an_archive_and_the_following_use_it(environ: dict[str, str], tmp_path: Path) -> None:
    first = quick_start(environ, {})
    assert "-XX:ArchiveClassesAtExit=" in first["SPARK_SUBMIT_OPTS"]
    said = launcher(first)
    assert said[0] == 0
    second = quick_start(environ, {})
    assert archive_of(second).exists()
    assert launcher(second) == said
    _, loaded = launcher(second, "-Xlog:class+load:stdout")
    assert "org.apache.spark.launcher.Main source: shared objects file (top)" in loaded
    assert {*(tmp_path / "fairsched").iterdir()} == {Path(second["SPARK_HOME"]), archive_of(second)}


def test_an_archive_that_is_damaged_is_none(environ: dict[str, str]) -> None:
    said = launcher(quick_start(environ, {}))
    archive = archive_of(quick_start(environ, {}))
    whole = archive.read_bytes()
    half = len(whole) // 2
    # A page of it is something else: a JVM that does not look crashes with some of them.
    pages = [whole[:start] + bytes([90]) * 4096 + whole[start + 4096 :] for start in range(0, 600_000, 65536)]
    for damaged in (whole[:half], whole[:-1], b"", *pages, whole[::-1], whole):
        archive.unlink()
        archive.write_bytes(damaged)
        found = quick_start(environ, {})
        assert (archive_of(found) == archive) == (len(damaged) == len(whole))
        assert launcher(found) == said
        # What the JVM has left instead.
        for left in archive.parent.glob("*.new"):
            left.unlink()


def test_what_a_jvm_has_not_finished_is_no_archive(environ: dict[str, str]) -> None:
    first = archive_of(quick_start(environ, {}))
    # Its regions are written, and its header is not.
    first.write_bytes(bytes(4096) + b"classes")
    # No other process begins until that one has ended for certain.
    assert {*quick_start(environ, {})} == {"SPARK_HOME"}
    assert first.exists()
    os.utime(first, (time.time() - 7200,) * 2)
    quick_start(environ, {})
    assert not first.exists()
    assert archive_of(quick_start(environ, {})) == first


def test_another_java_has_another_archive_and_the_last_stays(environ: dict[str, str], tmp_path: Path) -> None:
    launcher(quick_start(environ, {}))
    used = archive_of(quick_start(environ, {}))
    other = tmp_path / "java"
    for name in ("bin/java", "lib/server/classes.jsa"):
        (other / name).parent.mkdir(parents=True)
        (other / name).write_text("")
    (other / "bin" / "java").chmod(0o755)
    changed = {**environ, "JAVA_HOME": str(other)}
    assert "-XX:ArchiveClassesAtExit=" in quick_start(changed, {})["SPARK_SUBMIT_OPTS"]
    assert used.exists()
    os.utime(used, (time.time() - 7200,) * 2)
    assert archive_of(quick_start(environ, {})) == used
    quick_start(changed, {})
    assert not used.exists()


def test_where_no_archive_can_be_written_no_jvm_begins_one(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would, each time, for some seconds, and end with an error."""
    quick_start(environ, {})
    with monkeypatch.context() as patch:
        patch.setattr(module, "_ROOM", 1 << 62)
        assert {*quick_start(environ, {})} == {"SPARK_HOME"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda place, mode: mode != os.W_OK)
        assert {*quick_start(environ, {})} == {"SPARK_HOME"}
    assert launcher(quick_start(environ, {}))[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(module, "_ROOM", 1 << 62)
        assert archive_of(quick_start(environ, {})).exists()


def test_of_two_archives_that_were_written_at_once_one_stays(environ: dict[str, str], tmp_path: Path) -> None:
    launcher(first := quick_start(environ, {}))
    left = archive_of(first)
    for number in (1, 2):
        shutil.copy(left, left.with_suffix(f".{number}.new"))
        with left.with_suffix(f".{number}.new").open("ab") as file:
            file.write(bytes(number))
    archive = archive_of(quick_start(environ, {}))
    assert {*(tmp_path / "fairsched").iterdir()} == {Path(first["SPARK_HOME"]), archive}
    assert archive_of(quick_start(environ, {})) == archive


def test_archives_of_sparks_that_are_gone_go_too(environ: dict[str, str], tmp_path: Path) -> None:
    """Each is of 190 MB, and each installation has its own."""
    home = check(quick_start(environ, {}), tmp_path)
    digest = home.name.rpartition("-")[2]
    (own := home.with_name(f"{home.name}-{digest}.7.jsa")).write_text("archive")
    for number, jars in enumerate([tmp_path / "gone", SPARK / "jars", None]):
        other = home.with_name(f"spark-4.0.{number}-{digest[::-1]}")
        if jars is not None:  # installed again, or no more
            other.mkdir()
            (other / "jars").symlink_to(jars)
        for name in (f"{other.name}-{digest}.7.jsa", f"{other.name}-{digest}.7.new"):
            home.with_name(name).write_text("archive")
    shutil.rmtree(home)
    assert check(quick_start(environ, {}), tmp_path) == home
    assert [place for place in home.parent.iterdir() if place.is_file()] == [own]
