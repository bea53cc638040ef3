"""The compiled part of fairsched; everything else about the package is in pyproject.toml."""

import functools
import gc
import hashlib
import os
import sys
from pathlib import Path

from setuptools import Extension, setup

# Switches read from the environment, so that one set-up file serves every build:
#   FAIRSCHED_SANITIZE=address|thread   compile with ASAN+UBSAN or TSAN (tools/sanitize preloads the runtime)
#   FAIRSCHED_TRACE=1                   line tracing, for coverage of .pyx and .pxd
#   FAIRSCHED_PROBE=1                   also build the test probes, which reach C-level functions; never in a wheel
#   FAIRSCHED_POLL=1                    have the broker wait for sockets with poll, as where there is no epoll
#   FAIRSCHED_COMPILED=1                compile nothing: the Makefile does that, and only what has changed
SANITIZE = os.environ.get("FAIRSCHED_SANITIZE", "")
TRACE = os.environ.get("FAIRSCHED_TRACE") == "1"
PROBE = os.environ.get("FAIRSCHED_PROBE") == "1"
POLL = os.environ.get("FAIRSCHED_POLL") == "1"
CORES = os.cpu_count() or 1
COMPILED = os.environ.get("FAIRSCHED_COMPILED") == "1"
CACHE = os.environ.get("CYTHON_CACHE_DIR")

# Division, bounds and wrap-around checks would take the GIL inside nogil code: off once, here, for all of the core.
DIRECTIVES = {
    "language_level": 3,
    "cdivision": True,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "auto_pickle": False,
    "embedsignature": False,
    "freethreading_compatible": True,
    "linetrace": TRACE,
    # Sources are copied into generated code, of which they are two fifths, only for the coverage plugin.
    "emit_code_comments": TRACE,
}

# Test probes that benchmarks measure: compiled as the package is. The others take two thirds of that time.
MEASURED_PROBES = {"_probe", "_probe_chain", "_probe_codel", "_probe_nodes", "_probe_queue"}
# Compiled with -O2: measured, they are as fast as with -O3, and take half its time.
AS_FAST_IN_HALF_THE_TIME = {"_broker", "_journal", "_simulator", "_kombulink", "_amqpfields"}


def compiler_flags() -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Return compile arguments, link arguments and macros for this platform and these switches."""
    macros = [("CYTHON_TRACE_NOGIL", "1")] if TRACE else []
    macros += [("FAIRSCHED_POLL", "1")] if POLL else []
    if sys.platform == "win32":
        return ["/std:c++17", "/O2"], [], macros
    # -g0: distributions' Python asks for debugging information, half of what the compiler writes.
    compile_args = ["-std=c++17", "-g0", "-O3", "-fno-tree-slp-vectorize", "-fno-exceptions", "-fvisibility=hidden"]
    if sys.platform == "linux":
        # Otherwise gcc stops inlining when a module has grown by 40 %: a large one, before it comes to inner loops.
        compile_args.append("--param=inline-unit-growth=200")
    # Distributions' Python refuses formats that are no literals: refuse them with every Python.
    compile_args += ["-Wformat", "-Werror=format-security"]
    # Cython writes conversions of structs to Python objects that nobody asks for.
    compile_args.append("-Wno-unused-function")
    # A wheel has no use for the names of its static functions, a twentieth of it; a profiler of a build in place has.
    link_args = ["-Wl,--strip-all"] if sys.platform == "linux" and "bdist_wheel" in sys.argv and not SANITIZE else []
    if SANITIZE:
        kinds = {"address": "address,undefined", "thread": "thread"}
        if SANITIZE not in kinds:
            raise SystemExit(f"FAIRSCHED_SANITIZE must be one of {sorted(kinds)}, got {SANITIZE!r}")
        flag = f"-fsanitize={kinds[SANITIZE]}"
        compile_args += [flag, "-g", "-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
        link_args += [flag]
    return compile_args, link_args, macros


def optimisation(source: str) -> list[str]:
    """Return what to compile this with instead of -O3.

    Test probes whose speed is not measured: -O1. `AS_FAST_IN_HALF_THE_TIME`: -O2.
    """
    if sys.platform == "win32":
        return []
    name = Path(source).stem
    if "probes" in source and name not in MEASURED_PROBES:
        return ["-O1"]
    return ["-O2"] if name in AS_FAST_IN_HALF_THE_TIME else []


def extensions() -> list[Extension]:
    """List the extension modules of this build: one for each `_name.pyx` of the package and its subpackages."""
    found = sorted(Path("src/fairsched").rglob("_*.pyx"))
    sources = {".".join(path.relative_to("src").with_suffix("").parts): path.as_posix() for path in found}
    if sys.platform == "win32":
        del sources["fairsched.broker._broker"]  # its sockets are POSIX's; fairsched/broker says so when imported
    if PROBE:
        sources |= {f"fairsched.{path.stem}": path.as_posix() for path in sorted(Path("tests/probes").glob("_*.pyx"))}
    compile_args, link_args, macros = compiler_flags()
    return [
        Extension(
            name,
            [path],
            language="c++",
            extra_compile_args=compile_args + optimisation(path),
            extra_link_args=link_args,
            define_macros=macros,
            depends=["setup.py"],
        )
        for name, path in sources.items()
    ]


def return_structs_untraced() -> None:
    """Have the tracer not see the structs that C functions return.

    Cython would make Python objects of them, and read octets that a pointer points to as a text with a zero at its end.
    """
    from Cython.Compiler.PyrexTypes import CStructOrUnionType

    initialise = CStructOrUnionType.__init__

    def initialise_inconvertible(self: CStructOrUnionType, *args: object, **options: object) -> None:
        initialise(self, *args, **options)
        self.to_py_function, self._convert_to_py_code = None, False

    CStructOrUnionType.__init__ = initialise_inconvertible


def release_once() -> None:
    """Have a list comprehension survive an append that fails for want of memory.

    Cython 3.3 releases the item twice then: where the call fails, and where the exception is handled. A version of
    Cython with other code is left as it is; tests/reentrancy/test_no_memory.py would find this fault in it.
    """
    from Cython.Compiler.Code import UtilityCode

    utility = UtilityCode.load_cached("ListCompAppendAndDecref", "Optimize.c")
    utility.impl = utility.impl.replace(
        "    Py_DECREF(x);\n    return result;", "    if (!result) Py_DECREF(x);\n    return result;"
    )


def collect_seldom() -> None:
    """Have the collector run seldom: a translator makes many objects and drops few before it ends.

    Looking for cycles took it a third of its time. Processes forked later keep this; each needs about 100 MB more.
    """
    gc.set_threshold(500_000, 20, 100)


def list_folders_once() -> None:
    """Have each folder be listed once, and not for every name that might be a module in it.

    Cython takes each name in `from module cimport name` for a module first, and matches patterns against all files of
    each folder that it could be in: that was a fifth of the translation. No folder changes meanwhile.
    """
    from Cython import Utils

    find = Utils.find_versioned_file

    @functools.cache
    def beginnings(folder: str) -> frozenset[str]:
        try:
            return frozenset(name.partition(".")[0] for name in os.listdir(folder or "."))
        except OSError:
            return frozenset()

    def find_listed(folder: str, name: str, suffix: str) -> str | None:
        return find(folder, name, suffix) if name.partition(".")[0] in beginnings(folder) else None

    Utils.find_versioned_file = find_listed


def translated() -> list[Extension]:
    """Translate what has changed to C++."""
    from Cython.Build import cythonize  # not needed where nothing is compiled, and pip runs this file several times

    if TRACE:
        return_structs_untraced()
    release_once()
    list_folders_once()
    collect_seldom()
    return cythonize(
        extensions(),
        include_path=["src"],
        compiler_directives=DIRECTIVES,
        emit_linenums=bool(SANITIZE) or TRACE,
        # Traced builds keep the generated code beside its source, where the coverage plugin looks for it.
        build_dir=None if TRACE else "build",
        # What was translated before, by its contents and those of this file: Cython's variable for the folder with it.
        cache=CACHE and str(Path(CACHE) / hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]),
        # Translators are forked; where that is not how processes start, they would run this file again.
        nthreads=CORES if sys.platform == "linux" else 0,
    )


# The build back end runs this file as a script; tools/check_generated.py imports it for the directives.
if __name__ == "__main__":
    setup(options={"build_ext": {"parallel": CORES}}, ext_modules=[] if COMPILED else translated())
