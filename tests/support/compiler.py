"""A C++ compiler that compiles nothing twice: for tests of what is in a wheel, whatever machine code that is.

Usage: as g++. The object file of what the build of this tree has compiled is copied; the code that Cython has written
begins with the flags that it is compiled with. Everything else the real compiler does, which links.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]


def compiled(source: Path) -> Path | None:
    """Return the object file of that code, by its path in a tree and its contents; None if there is none."""
    same = TREE / source
    if not same.exists() or same.read_bytes() != source.read_bytes():
        return None
    found = TREE.glob(f"build/temp.*-{sys.implementation.cache_tag}/{source.with_suffix('.o')}")
    return next((one for one in found if one.stat().st_mtime >= same.stat().st_mtime), None)


def main() -> None:
    arguments = sys.argv[1:]
    if "-c" in arguments:
        source, target = (Path(arguments[arguments.index(option) + 1]) for option in ("-c", "-o"))
        if (known := compiled(source)) is not None:
            shutil.copyfile(known, target)
            return
    command = [*sysconfig.get_config_var("CXX").split(), *arguments]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
