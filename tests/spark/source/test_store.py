"""A name is created once: locally, by several processes, and on an object store's interface."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fsspec
import pytest
from support.spark.racing import race

from fairsched.errors import ConfigurationError
from fairsched.spark.source.store import LocalStore, ObjectStore, Store, check, open_store


@pytest.fixture(params=["local", "object"])
def store(request, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(tmp_path / "spool")
    return ObjectStore(fsspec.filesystem("memory"), f"/{tmp_path.name}")


def test_a_name_is_created_once(store: Store):
    assert store.create("a/b", b"first")
    assert not store.create("a/b", b"second")
    assert bytes(store.read("a/b")) == b"first"
    assert bytes(store.read("a/b", 3))[:3] == b"fir"
    assert store.exists("a/b")
    assert not store.exists("a/c")
    with pytest.raises(FileNotFoundError):
        store.read("a/c")


def test_names_are_listed_and_removed(store: Store):
    for name in ("a/2", "a/1", "b/c/d"):
        store.create(name, b"x")
    assert store.listed("a") == ["1", "2"]
    assert store.listed() == ["a", "b"]
    assert store.listed("nothing") == []
    store.remove("a/1")
    assert store.listed("a") == ["2"]
    store.remove("b")
    store.remove("b")
    assert not store.exists("b/c/d")


def test_check_leaves_nothing(store: Store):
    check(store, "there")
    assert store.listed() == []


def test_of_racing_processes_one_creates_each_name(tmp_path: Path):
    race(str(tmp_path), 3, os.environ)
    assert [name for name in os.listdir(tmp_path / "race") if name.startswith(".")] == []


class Overwriting(LocalStore):
    """A place where the second writer wins."""

    def create(self, name: str, data: bytes) -> bool:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return True


def test_a_place_that_overwrites_is_found_out(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="must refuse to create a file that exists"):
        check(Overwriting(tmp_path), "nfs")


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch):
    def no_links(*_arguments):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(ConfigurationError, match="hard links"):
        LocalStore(tmp_path).create("a", b"")
    assert os.listdir(tmp_path) == []


def test_a_link_whose_answer_was_lost_counts(tmp_path: Path, monkeypatch):
    link = os.link

    def repeated(*arguments):
        link(*arguments)
        link(*arguments)

    monkeypatch.setattr(os, "link", repeated)
    assert LocalStore(tmp_path).create("a", b"x")


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("hdfs://name/spool", "cannot be on hdfs://, where pyarrow and fsspec ask the name node to overwrite"),
        ("webhdfs://name/spool", "cannot be on webhdfs://"),
        ("dbfs:/spool", "cannot be on dbfs://"),
        ("spool", "absolute path"),
        ("file://shared/spool", "must be file:///path, without a host"),
        ("file:///shared/a#b", "must be file:///path, without a host"),
        ("s3://bucket/spool", "needs fsspec and s3fs"),
    ],
)
def test_a_place_that_cannot_do_it_is_refused(location: str, why: str, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigurationError, match=why):
        open_store(location)


def test_a_password_in_the_url_is_refused_and_not_shown():
    with pytest.raises(ConfigurationError, match="must not contain a password") as caught:
        open_store("s3://reader:hush-hush@bucket/spool")
    assert "hush" not in str(caught.value)


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path):
    (tmp_path / "spool").write_text("a file")
    with pytest.raises(ConfigurationError, match=r"spool' cannot be written to: (FileExists|NotADirectory)Error"):
        check(LocalStore(tmp_path / "spool"), str(tmp_path / "spool"))


def test_paths_and_file_urls_are_the_same_place(tmp_path: Path):
    folder = tmp_path / "with space"
    open_store(folder.as_uri()).create("a", b"1")
    assert bytes(open_store(str(folder)).read("a")) == b"1"
