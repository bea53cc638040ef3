"""Building what is shipped: an sdist from a copy of the tree, a wheel from the sdist.

`make wheel` tests the wheel that is released. For this one, under `make`, what the build of the tree has translated and
compiled is taken as it is, see `compiler.py`; where the sources are others, they are compiled.
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
    """Build the wheel of an sdist."""
    shutil.unpack_archive(sdist, folder, filter="data")
    [tree] = folder.iterdir()
    compiler = f"{sys.executable} {Path(__file__).with_name('compiler.py')}"
    run(*BUILD, "--wheel", "--outdir", folder, ".", cwd=tree, CXX=compiler)
    [wheel] = folder.glob("*.whl")
    return wheel
