"""What is shipped: metadata, the sdist with its Cython sources, the wheel without them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import tarfile
import tomllib
import zipfile

import pytest
from support.distributions import ROOT

import fairsched

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


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


def test_a_wheel_with_sources_or_the_probe_is_found_out(tmp_path):
    wheel = tmp_path / "bad.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*check_dist.WHEEL_FILES, "fairsched/_core.so", "fairsched/_core.pyx", "fairsched/_probe.so"):
            archive.writestr(name, "")
    assert check_dist.wheel_problems(wheel) == [
        "wheel holds the test probe fairsched/_probe.so",
        "wheel holds source fairsched/_core.pyx",
    ]
