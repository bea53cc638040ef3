"""Building what is shipped: an sdist from a copy of the tree, a wheel from the sdist.

`make wheel` tests the wheel that is released; this one is compiled without optimisation, in a third of the time, and
under `make` of what Cython has translated for the build, where the contents of the sources are the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Without a look at what is required, for which setup.py would run, and all sources be translated, once more.
BUILD = (sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check")


def run(*command: object, cwd: Path, **switches: str) -> None:
    """Run a command with no switches but these and no way to this tree; show what it says if it fails."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("FAIRSCHED_", "PYTHONPATH"))
    }
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment | switches, capture_output=True, text=True,
        check=False, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def once(common: Path, name: str, build: Callable[[Path], Path]) -> Path:
    """Build something for all processes that have a folder in common: the first builds, the others wait."""
    import fcntl

    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        link = common / name
        if not link.exists():
            link.symlink_to(build(Path(tempfile.mkdtemp(dir=common))))
        return link.resolve()


def build_sdist(folder: Path) -> Path:
    """Build an sdist from a copy of the tree, as dirty as the tree is: built modules must not slip in."""
    tree = folder / "fairsched"
    ignored = shutil.ignore_patterns(".venv", ".git", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, tree, ignore=ignored)
    run(*BUILD, "--sdist", "--outdir", "out", ".", cwd=tree)
    [archive] = (tree / "out").glob("*.tar.gz")
    return archive


def build_wheel(sdist: Path, folder: Path) -> Path:
    """Compile and build the wheel of an sdist; takes a minute."""
    shutil.unpack_archive(sdist, folder, filter="data")
    [tree] = folder.iterdir()
    run(*BUILD, "--wheel", "--outdir", folder, ".", cwd=tree, FAIRSCHED_UNOPTIMISED="1")
    [wheel] = folder.glob("*.whl")
    return wheel
