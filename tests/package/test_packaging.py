"""The distributions: metadata, the sdist with its Cython sources, the wheel without them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest
from support.distributions import ROOT

import fairsched

CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, CIBUILDWHEEL = CONFIGURATION["project"], CONFIGURATION["tool"]["cibuildwheel"]


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_dist = load_tool("check_dist")


def test_versions_agree():
    assert fairsched.__version__ == PROJECT["version"] == importlib.metadata.version("fairsched")


def test_every_extra_is_in_the_metadata():
    metadata = importlib.metadata.metadata("fairsched")
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])


def test_the_command_is_installed():
    [entry] = importlib.metadata.entry_points(group="console_scripts", name="fairsched")
    assert callable(entry.load())


def test_public_names_exist_and_are_listed_once():
    assert len(set(fairsched.__all__)) == len(fairsched.__all__)
    assert [name for name in fairsched.__all__ if not hasattr(fairsched, name)] == []


def test_public_names_are_offered_where_they_are_typed():
    """In a new process: a name that was used is there in any case."""
    code = "import fairsched; print(sorted(set(fairsched.__all__) - set(dir(fairsched))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_workflow_tests_of_a_wheel_what_make_wheel_tests(tmp_path):
    """There is no shell everywhere, so the workflow has a list of its own of what no wheel can run."""
    omitted = re.search(r'copy-tests "\$work" (.+)', (ROOT / "tools/wheel").read_text(encoding="utf-8"))[1].split()
    subprocess.run([ROOT / "tools/copy-tests", tmp_path, *omitted], check=True)
    ignored = re.findall(r"--ignore=tests/(\S+)", CIBUILDWHEEL["test-command"])

    def tests(folder):
        return {path.relative_to(folder).as_posix() for path in folder.rglob("test_*.py")}

    dropped = re.compile(f"({'|'.join(map(re.escape, ignored))})(/|$)")
    assert tests(tmp_path / "tests") == {name for name in tests(ROOT / "tests") if not dropped.match(name)}


@pytest.mark.slow
def test_sdist_holds_all_sources_and_nothing_generated(sdist):
    assert check_dist.sdist_problems(sdist) == []
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    sources = [path for suffix in ("py", "pyi", "pyx", "pxd") for path in (ROOT / "src").rglob(f"*.{suffix}")]
    assert [path for path in sources if path.relative_to(ROOT).as_posix() not in packed] == []


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_wheel_from_the_sdist_holds_no_sources(wheel):
    assert check_dist.wheel_problems(wheel) == []


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.skipif(sys.platform != "linux", reason="of ELF files")
def test_modules_of_a_wheel_have_no_table_of_static_names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        modules = [archive.read(name) for name in archive.namelist() if name.endswith(".so")]
    assert modules
    assert not any(b"\0.symtab\0" in module for module in modules)


def test_a_wheel_with_sources_or_the_probe_is_found_out(tmp_path):
    wheel = tmp_path / "bad.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*check_dist.WHEEL_FILES, "fairsched/_core.so", "fairsched/_core.pyx", "fairsched/_probe.so"):
            archive.writestr(name, "")
    assert check_dist.wheel_problems(wheel) == [
        "wheel holds the test probe fairsched/_probe.so",
        "wheel holds source fairsched/_core.pyx",
    ]


def test_a_bill_of_materials_that_lacks_a_dependency_or_a_version_is_found_out(tmp_path):
    wheel = tmp_path / "fairsched-1.2-cp313-cp313-linux_x86_64.whl"
    requirements = ["pika<3,>=1.4.1", "numpy>=2.0", 'click>=8.1; extra == "cli"']
    with zipfile.ZipFile(wheel, "w") as archive:
        lines = ["Name: fairsched", "Version: 1.2", *(f"Requires-Dist: {line}" for line in requirements)]
        archive.writestr("fairsched-1.2.dist-info/METADATA", "\n".join([*lines, "", ""]))
    sbom = tmp_path / "fairsched-1.2.cdx.json"

    def problems(version, components, needed):
        document = {
            "metadata": {"component": {"bom-ref": "root", "name": "fairsched", "version": version}},
            "components": components,
            "dependencies": [{"ref": "root", "dependsOn": needed}],
        }
        sbom.write_text(json.dumps(document), encoding="utf-8")
        return check_dist.sbom_problems(str(sbom), str(wheel))

    pika = {"bom-ref": "a", "name": "pika", "version": "1.4.4"}
    numpy = {"bom-ref": "b", "name": "NumPy", "version": "2.4"}
    assert problems("1.2", [pika, numpy], ["a", "b"]) == []
    assert problems("1.1", [pika, numpy], ["a"]) == [
        "SBOM describes fairsched 1.1 instead of fairsched 1.2",
        "SBOM lacks the dependency numpy",
    ]
    assert problems("1.2", [pika, numpy | {"version": ""}], ["a", "b"]) == ["SBOM has no version of NumPy"]
