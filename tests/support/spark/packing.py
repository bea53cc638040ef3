"""An environment for executors, packed: fairsched from its wheel, and what it needs, all of it compiled."""

from __future__ import annotations

import re
import shutil
import sys
import venv
import zipfile
from importlib.metadata import PackagePath, distribution
from pathlib import Path

from packaging.requirements import Requirement
from support.distributions import run

REMEDY = (
    "venv-pack is needed to test how environments are brought to executors, and was not found: 'make build' installs "
    "it, and so does pip install --group build"
)
#: What the source needs on an executor. PySpark comes from Spark itself.
PACKAGES = ("numpy", "pandas", "pika", "pyarrow")


def with_requirements(*names: str) -> set[str]:
    """These distributions and all that they need, by their canonical names."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in found:
            found.add(name)
            needed = map(Requirement, distribution(name).requires or [])
            waiting += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def files_of(name: str) -> list[PackagePath]:
    """The files of a distribution that somebody imports: of pandas and pyarrow, tests and headers are a quarter."""
    return [
        file for file in distribution(name).files or []
        if ".." not in file.parts and file.suffix != ".pyc" and file.parts[1:2] not in (("tests",), ("include",))
    ]  # fmt: skip


def wheel_of(name: str, folder: Path) -> None:
    """Make a wheel of what pip installed here."""
    found = distribution(name)
    tags = [tag.split("-") for tag in re.findall(r"^Tag: (.+)$", found.read_text("WHEEL") or "", re.MULTILINE)]
    tag = "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*tags, strict=True))
    files = files_of(name)
    record = next(file for file in files if file.name == "RECORD")
    left_out = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
    stem = f"{re.sub(r'[-_.]+', '_', found.metadata['Name'])}-{found.version}"
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w") as archive:
        for file in files:
            if file.name not in left_out:
                archive.write(str(file.locate()), file.as_posix())
        archive.writestr(record.as_posix(), "".join(f"{one},,\n" for one in [*archive.namelist(), record.as_posix()]))


def pack_environment(folder: Path, wheel: Path) -> Path:
    """Make a virtual environment, pack it, remove it, and return the archive.

    Packages are copied as pip recorded them here, so no network is needed.
    """
    try:
        import venv_pack
    except ImportError as error:
        raise RuntimeError(REMEDY) from error
    home = folder / "made"
    venv.create(home, symlinks=True)
    [site] = home.glob("lib/python*/site-packages")
    for name in with_requirements(*PACKAGES):
        for file in distribution(name).files or []:
            if ".." not in file.parts and file.suffix != ".pyc":
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), site / file)
    python = home / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    archive = folder / "env.tar.gz"
    venv_pack.pack(prefix=str(home), output=str(archive), compress_level=0)
    shutil.rmtree(home)
    return archive
