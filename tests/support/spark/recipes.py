"""Recipes of the documentation, taken out of its pages and run as they are printed, on a machine made for them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
import venv
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

from support.distributions import ROOT
from support.spark.home import BRIEF, brief_jvm, find_java
from support.spark.packing import wheel_of, with_requirements

from fairsched.spark.pipeline.home import link

#: Where a reader has something of his own: broker, shared folder and object store.
BROKER, SHARED, STORE = r"amqp://app:secret@broker/(%2F)?", "/shared", "http://minio:9000"

_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "900m",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


class Block(NamedTuple):
    """A block of code, and its language."""

    language: str
    code: str

    @property
    def file(self) -> str | None:
        """Return the name in its first line."""
        found = re.match(r"# (\w+\.\w+)\n", self.code)
        return found and found[1]


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page, in their order."""
    text = (ROOT / "docs" / "howto" / page).read_text(encoding="utf-8")
    found = re.findall(r"^( *)```(\w+)\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    return [Block(language, textwrap.dedent(code)) for _, language, code in found]


def _spark_variables(folder: Path, master: str, home: Path) -> dict[str, str]:
    """Give Spark its home and its defaults: as properties, since a folder with them forbids archived classes.

    A cluster on this machine has such a folder, and a home of its own, into which it writes.
    """
    if not master.startswith("local-cluster"):
        properties = [f"-D{name}={value}" for name, value in _DEFAULTS.items()]
        options = " ".join([brief_jvm(), *properties])
        return {"SPARK_HOME": str(home), "MASTER": master, "SPARK_SUBMIT_OPTS": options}
    settings = {"spark.master": master, **_DEFAULTS}
    settings.update({f"spark.{role}.extraJavaOptions": BRIEF for role in ("driver", "executor")})
    (folder / "conf").mkdir()
    lines = [f"{name} {value}\n" for name, value in settings.items()]
    (folder / "conf" / "spark-defaults.conf").write_text("".join(lines))
    return {"SPARK_HOME": str(link(folder / "home")), "SPARK_CONF_DIR": str(folder / "conf")}


class Machine:
    """A fresh folder, and an environment that has all packages but fairsched, which pip finds.

    Parameters
    ----------
    folder : Path
        For everything.
    wheel : Path
        What pip finds.
    url : str
        The broker.
    master : str
        Where Spark runs what does not say it.
    home : Path
        From which Spark starts quickly, unless it is a cluster.
    """

    def __init__(self, folder: Path, wheel: Path, url: str, master: str, home: Path) -> None:
        self.here = folder / "fresh"
        self.shared = folder / "shared"
        self._url = url
        self._wheels = folder / "wheels"
        self._home = folder / "env"
        for one in (self.here, self.shared, self._wheels, folder / "decoy"):
            one.mkdir()
        shutil.copy(wheel, self._wheels)
        self._make_environment(folder / "packages")
        # The python3 of the machine, which has no packages.
        (folder / "decoy" / "python3").symlink_to(Path(sys.base_prefix, "bin", "python3").resolve())
        self.environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("FAIRSCHED_", "PIP_", "PYSPARK_", "PYTHON", "SPARK_", "VIRTUAL_ENV"))
        }  # fmt: skip
        self.environment.update(
            JAVA_HOME=find_java(), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(self._wheels),
            PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_COMPILE="1", **_spark_variables(folder, master, home),
        )  # fmt: skip
        self._paths = [str(self._home / "bin"), self.environment["SPARK_HOME"] + "/bin", os.environ["PATH"]]
        self.environment["PATH"] = os.pathsep.join(self._paths)

    def _make_environment(self, packages: Path) -> None:
        """Lead to the packages here by links, pip among them, without what leads to fairsched."""
        packages.mkdir()
        ours = re.compile(r"(__editable__.*|fairsched|pyspark_fairsched|setuptools|_distutils_hack|distutils)\b")
        for place in Path(distribution("pika").locate_file("")).iterdir():
            if not ours.match(place.name):
                (packages / place.name).symlink_to(place)
        venv.create(self._home, symlinks=True)
        [site] = self._home.glob("lib/python*/site-packages")
        (site / "packages.pth").write_text(f"{packages}\n")
        pip = self._home / "bin" / "pip"
        pip.write_text(f"#!{self._home}/bin/python\nfrom pip import main\n\nraise SystemExit(main())\n")
        pip.chmod(0o755)
        (self._home / "bin" / "venv-pack").symlink_to(Path(sys.executable).parent / "venv-pack")

    def offer(self, *packages: str) -> None:
        """Let pip find these and what they need, for environments that have nothing."""
        for name in with_requirements(*packages):
            wheel_of(name, self._wheels)

    def with_another_python3(self) -> None:
        """Put a python3 first that has no packages: the environment is not activated."""
        self.environment["PATH"] = os.pathsep.join([str(self._home.parent / "decoy"), *self._paths])

    def text(self, block: Block, more: Mapping[str, str] | None = None) -> str:
        """The code, with what a reader has of his own in place of what is printed."""
        text = re.sub(BROKER, self._url, block.code)
        for printed, own in {SHARED: str(self.shared), **(more or {})}.items():
            text = text.replace(printed, own)
        return text

    def write(self, block: Block, more: Mapping[str, str] | None = None) -> None:
        """Write a file that the page shows."""
        assert block.file is not None
        (self.here / block.file).write_text(self.text(block, more))

    def start(self, code: str) -> subprocess.Popen[str]:
        """Run lines of a shell in the folder, in a session of their own."""
        return subprocess.Popen(
            ["bash", "-ec", code], cwd=self.here, env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
