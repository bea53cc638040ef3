"""The place of segments: a file system on which a name can be created once, by one of several writers.

What a source acknowledges rests on that, so a place that cannot do it is refused, and `check` tries it out:

* a path or ``file://``, local or NFS: a temporary file, fsync, then a hard link, which fails if the name is taken;
* ``s3``, ``s3a``, ``gs``, ``gcs``, ``az``, ``abfs``, ``abfss`` by fsspec: a conditional put (``If-None-Match: *``);
* ``hdfs``, ``webhdfs``: refused, see `_HDFS`.

No pyspark here. A store is for one thread; any number of processes may use one place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from fairsched.errors import ConfigurationError

_OBJECT_STORES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs",
                  "abfss": "adlfs"}  # fmt: skip

#: Year and month of the first release of all of them whose ``pipe_file`` knows ``mode="create"``; s3fs 2024.10 drops it
#: and overwrites. The planner tries its place out, but an executor may have other packages.
_EXCLUSIVE_SINCE = (2024, 12)

#: A name node can create and rename exclusively, but no client in Python lets it: WebHDFS in fsspec always sends
#: ``overwrite=true`` and drops the answer to a rename, and libhdfs, which pyarrow uses, opens files to overwrite them;
#: pyarrow deletes the target when a rename finds it taken.
_HDFS = ("hdfs", "webhdfs", "swebhdfs", "viewfs")


#: Errors of the system for a full disk or quota.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Store(Protocol):
    """Named blobs; names contain slashes. A name is written once, and seen by all as soon as it exists."""

    def create(self, name: str, data: Any) -> bool:
        """Create `name` durably; False, and nothing changed, if it exists already."""

    def exists(self, name: str) -> bool:
        """Whether there is such a blob."""

    def read(self, name: str, most: int | None = None) -> Any:
        """Return the blob, or at least its first `most` bytes, as a buffer; FileNotFoundError if there is none."""

    def listed(self, prefix: str = "") -> list[str]:
        """Names directly below a prefix, sorted."""

    def remove(self, prefix: str) -> None:
        """Remove the blob of this name, or everything below it."""


class LocalStore:
    """A directory that all executors see: local, or a network file system with hard links.

    Parameters
    ----------
    root : Path
        The directory; made when needed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, name: str, data: Any) -> bool:
        """Write beside the name, then link: the name appears whole or not at all."""
        path = self._root / name
        _make(path.parent, self._root)
        beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with open(beside, "xb", opener=_private) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            return self._link(beside, path)
        finally:
            beside.unlink(missing_ok=True)

    @staticmethod
    def _link(beside: Path, path: Path) -> bool:
        try:
            os.link(beside, path)
        except FileExistsError:
            # NFS may answer a repeated request although the first one was carried out.
            if beside.stat().st_nlink < 2:
                return False
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise ConfigurationError(
                f"spoolLocation must be on a file system with hard links: linking in {path.parent} failed: {error}"
            ) from error
        _sync(path.parent)
        return True

    def exists(self, name: str) -> bool:
        """See `Store`."""
        return (self._root / name).exists()

    def read(self, name: str, most: int | None = None) -> Any:
        """Map the file, whole: only what is looked at is read."""
        import pyarrow as pa

        with pa.memory_map(str(self._root / name)) as file:
            return file.read_buffer()

    def listed(self, prefix: str = "") -> list[str]:
        """See `Store`; temporary files are left out."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(one.name for one in (self._root / prefix).iterdir() if not one.name.startswith("."))
        return []

    def remove(self, prefix: str) -> None:
        """See `Store`."""
        path = self._root / prefix
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: there are messages in it."""
    return os.open(path, flags, 0o600)


def _make(folder: Path, root: Path) -> None:
    """Make a folder and those above it, so that a power cut does not undo it; from `root` on, the owner's alone."""
    if not folder.is_dir():
        _make(folder.parent, root)
        folder.mkdir(0o700 if folder.is_relative_to(root) else 0o777, exist_ok=True)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class ObjectStore:
    """A bucket or container, by fsspec.

    Parameters
    ----------
    filesystem : fsspec.AbstractFileSystem
        One whose ``pipe_file(mode="create")`` is a conditional put.
    root : str
        Bucket and prefix.
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        self._files = filesystem
        self._root = root.rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def create(self, name: str, data: Any) -> bool:
        """Put if there is none."""
        try:
            self._files.pipe_file(self._path(name), bytes(data), mode="create")
        except FileExistsError:
            return False
        except OSError:
            # Older drivers say EINVAL; and a put that was carried out may be answered with an error.
            if self.exists(name):
                return False
            raise
        return True

    def exists(self, name: str) -> bool:
        """See `Store`."""
        self._files.invalidate_cache()
        return bool(self._files.exists(self._path(name)))

    def read(self, name: str, most: int | None = None) -> Any:
        """See `Store`."""
        return self._files.cat_file(self._path(name), end=most)

    def listed(self, prefix: str = "") -> list[str]:
        """See `Store`."""
        self._files.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            return sorted(
                one.rstrip("/").rpartition("/")[2] for one in self._files.ls(self._path(prefix), detail=False)
            )
        return []

    def remove(self, prefix: str) -> None:
        """See `Store`."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(self._path(prefix), recursive=True)


def open_store(location: str) -> Store:
    """Return the store at a location.

    Parameters
    ----------
    location : str
        An absolute path or a URL.

    Returns
    -------
    Store
        Nothing is read or written yet.

    Raises
    ------
    ConfigurationError
        The scheme cannot create a name exclusively, or needs a package that is missing or too old, or the URL holds a
        password, which is not shown.
    """
    parts = urlsplit(location)
    scheme, path, password = parts.scheme, parts.path, parts.password
    if scheme in ("", "file"):
        if not path.startswith("/"):
            raise ConfigurationError(f"spoolLocation must be an absolute path or a URL, got {location!r}")
        if scheme and (parts.netloc not in ("", "localhost") or parts.query or parts.fragment):
            raise ConfigurationError(
                f"spoolLocation must be file:///path, without a host, ? or # (write %3F or %23), got {location!r}"
            )
        return LocalStore(Path(unquote(path) if scheme else location))
    package = _OBJECT_STORES.get(scheme)
    if package is None:
        why = "a file cannot be created exclusively from Python"
        if scheme in _HDFS:
            why = "pyarrow and fsspec ask the name node to overwrite whatever file has the name"
        raise ConfigurationError(
            f"spoolLocation cannot be on {scheme}://, where {why}; use a directory that all executors share (file://, "
            f"NFS) or one of {', '.join(_OBJECT_STORES)}"
        )
    if password is not None:
        raise ConfigurationError(
            f"spoolLocation on {scheme}:// must not contain a password, because Spark shows it; pass it to fsspec by "
            "environment variables or a file"
        )
    try:
        import fsspec

        found = version(package)
        filesystem, root = fsspec.core.url_to_fs(location)
    except ImportError as error:
        raise ConfigurationError(
            f"spoolLocation on {scheme}:// needs fsspec and {package}: pip install them"
        ) from error
    if tuple(map(int, found.split(".")[:2])) < _EXCLUSIVE_SINCE:
        raise ConfigurationError(
            f"spoolLocation on {scheme}:// needs {package} 2024.12 or newer, because older ones overwrite; got {found}"
        )
    return ObjectStore(filesystem, root)


def refusal(location: str, error: Exception) -> str:
    """Return a line that says that a location cannot be written to, why, and what to do."""
    remedy = "make it writable for driver and executors"
    if isinstance(error, OSError) and error.errno in _FULL:
        remedy = "free some space, make batches smaller (maxBytesPerTrigger), or move it to a larger disk"
    return f"spoolLocation {location!r} cannot be written to: {error!r}; {remedy}, and start the query again"


def check(store: Store, location: str) -> None:
    """Try whether a name can be created twice.

    Parameters
    ----------
    store : Store
        To be tried.
    location : str
        For the message.

    Raises
    ------
    ConfigurationError
        It can: two attempts of a task could overwrite each other's messages. Or the place cannot be reached.
    """
    name = f"check-{uuid.uuid4().hex}"
    try:
        exclusive = store.create(f"{name}/once", b"1") and not store.create(f"{name}/once", b"2")
        store.remove(name)
    except ConfigurationError:
        raise
    except Exception as error:
        # The drivers have exceptions of their own, with nothing in common.
        raise ConfigurationError(refusal(location, error)) from error
    if not exclusive:
        raise ConfigurationError(f"spoolLocation {location!r} must refuse to create a file that exists, but does not")
