"""The durable contents of a broker: a journal in a SQLite database, written by a thread of its own.

Thread safety: compiled code appends from any thread without the GIL (core/broker/durability/journal.pxd). The methods
here are for one thread, except `close`, which may be called from any thread, and twice.
"""

import logging
import os
import sqlite3
import threading
from contextlib import suppress

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t

from fairsched.core.amqp.octets cimport bytes_size
from fairsched.core.broker.durability.journal cimport (
    JournalRecord, journal_close, journal_copy, journal_copy_wanted, journal_count, journal_first,
    journal_free, journal_init, journal_records, journal_recover, journal_refused, journal_take, journal_written,
    records_free,
)

_log = logging.getLogger("fairsched.broker")

#: SQLite's application id of a journal, by which other databases are recognised.
APPLICATION = 0x46534A31
#: Version of the format of chunks and records. A later version must read all earlier ones.
FORMAT = 1


def database_in(directory):
    """Return the path of the database in a directory. Missing ones are created, with access for this user only."""
    path = os.path.join(directory, "broker.db")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        # Do not open an existing file: closing it would release the locks that a broker of this process has on it.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        folder = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(folder)  # after a power cut the directory must contain the file
        finally:
            os.close(folder)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"the data directory must be one that this user can write to: {error.strerror}; change its owner or its "
            "rights, or choose another",
            error.filename,
        ) from None
    return path


def identity_of(path):
    """Return the identity of a file, which differs from that of a file that replaces it."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


cdef class Store:
    """Store(directory)
    --

    The journal of one broker.

    Parameters
    ----------
    directory : str or path
        Directory of the database, `broker.db`. Missing ones are created, with access for this user only.

    Attributes
    ----------
    path : str
        The file.
    error : Exception or None
        The reason why writing has failed.

    Raises
    ------
    RuntimeError
        The database is in use by another broker.
    ValueError
        The file is another database, is damaged, or was written by a later version.
    OSError
        The directory cannot be created or written to.

    Notes
    -----
    SQLite's write-ahead log is written and synchronised once per batch (`synchronous=full`), so a batch is on disk
    either completely or not at all, even after a power cut. Opening is O(octets stored).
    """

    def __cinit__(self, *_args):
        if not journal_init(&self.journal):
            raise MemoryError

    def __init__(self, directory):
        path = database_in(os.fspath(directory))
        self.path = path
        self.files = []
        self.chunks = []
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            self.open_database(path)
        except sqlite3.DatabaseError as error:
            self.connection.close()
            raise self.explained(path, error) from None
        except BaseException:
            self.connection.close()
            raise

    def explained(self, path, error):
        """Return the exception to raise for an error of SQLite while the database is opened."""
        code = getattr(error, "sqlite_errorname", "")
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return RuntimeError(
                f"{path} is in use by another broker: a data directory serves one at a time, so stop that one, or "
                "choose another directory"
            )
        if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return ValueError(
                f"{path} must be the database of a broker, but is damaged or something else ({error}): restore it from "
                "a copy, or choose another directory"
            )
        return OSError(f"{path} cannot be read and written ({error}): check its disk, or choose another directory")

    def open_database(self, path):
        execute = self.connection.execute
        execute("pragma locking_mode = exclusive")
        found = execute("pragma user_version").fetchone()[0]
        if found == 0:
            if execute("select count(*) from sqlite_master").fetchone()[0]:
                raise ValueError(
                    f"{path} must be the database of a broker, not of something else: choose another directory"
                )
            execute("pragma page_size = 16384")
        elif execute("pragma application_id").fetchone()[0] != APPLICATION:
            raise ValueError(
                f"{path} must be the database of a broker, not of something else: choose another directory"
            )
        elif found > FORMAT:
            raise ValueError(
                f"{path} has format {found}, of a later version of fairsched; this one knows {FORMAT}: install that "
                "version, or choose another directory"
            )
        execute("pragma journal_mode = wal")
        execute("pragma synchronous = full")
        execute("begin immediate")
        execute("create table if not exists chunk (number integer primary key, octets blob not null)")
        execute(f"pragma user_version = {FORMAT}")
        execute(f"pragma application_id = {APPLICATION}")
        execute("commit")
        whole = os.path.abspath(path)  # the process may change its directory later
        self.files = [(name, identity_of(name)) for name in (whole, whole + "-wal")]
        self.recover(path)

    def recover(self, path):
        cdef const uint8_t* data
        cdef int64_t size
        cdef int64_t number, last = 0
        cdef bint good
        for number, octets in self.connection.execute("select number, octets from chunk order by number"):
            if last and number != last + 1:
                raise ValueError(
                    f"{path} must have all chunks, but {last + 1} is missing: restore it from a copy, or choose "
                    "another directory"
                )
            last = number
            good = number > 0 and type(octets) is bytes  # a damaged page may contain any number and any type
            if good:
                self.chunks.append(octets)
                data = <const uint8_t*> PyBytes_AS_STRING(octets)
                size = PyBytes_GET_SIZE(octets)
                with nogil:
                    good = journal_recover(&self.journal, number, data, size)
            if not good:
                raise ValueError(
                    f"{path} must hold a broker's records, but chunk {number} does not: restore it from a copy, or "
                    "choose another directory"
                )

    @property
    def complaint(self):
        """The reason why writing has failed, as text, or None."""
        if self.error is not None:
            return f"{type(self.error).__name__}: {self.error}"
        return "memory is exhausted" if self.journal.failed.load() else None

    def records(self):
        """records($self)
        --

        Return the live records at the time of opening, as a list of (id, kind, octets) in the order of ids.

        Call it at most once. `Server` reads the same records without making objects.
        """
        cdef JournalRecord* found = journal_records(&self.journal)
        cdef int64_t i, count = journal_count(&self.journal)
        try:
            return [
                (found[i].id, found[i].kind, PyBytes_FromStringAndSize(<const char*> found[i].data, found[i].size))
                for i in range(count)
            ]
        finally:
            records_free(found)
            self.chunks = []

    def flush(self):
        """flush($self)
        --

        Write the records appended so far, in this thread; before `start`.

        Raises
        ------
        OSError
            The database cannot be written.
        """
        cdef uint64_t number
        with nogil:
            number = journal_take(&self.journal, 0)
        while number:
            try:
                self.write(number)
            except sqlite3.DatabaseError as error:
                raise OSError(f"{self.path} cannot be written ({error})") from None
            with nogil:
                journal_written(&self.journal)
                number = journal_take(&self.journal, 0)

    def start(self):
        """start($self)
        --

        Start the writer. Until then nothing is confirmed as written.
        """
        self.chunks = []
        self.thread = threading.Thread(target=self.run, name="fairsched-journal", daemon=True)
        self.thread.start()

    def run(self):
        cdef uint64_t number
        try:
            while True:
                with nogil:
                    number = journal_take(&self.journal, -1)
                if number:
                    self.write(number)
                    with nogil:
                        journal_written(&self.journal)
                elif self.journal.closed:
                    return
        except BaseException as error:
            self.error = error
            _log.critical(
                "%s can no longer be written; durable messages and declarations are refused from now on", self.path,
                exc_info=error,
            )
            with nogil:
                journal_refused(&self.journal)

    def write(self, uint64_t number):
        """Write the batch taken, and delete chunks that are no longer needed, in one transaction."""
        cdef uint64_t old, first
        execute = self.connection.execute
        with nogil:
            old = journal_copy_wanted(&self.journal)
        if old:
            self.copy(old, execute("select octets from chunk where number = ?", (old,)).fetchone())
        octets = PyBytes_FromStringAndSize(
            <const char*> self.journal.writing.octets.data + self.journal.writing.octets.begin,
            bytes_size(&self.journal.writing.octets),
        )
        with nogil:
            first = journal_first(&self.journal)
        execute("begin immediate")
        execute("insert into chunk values (?, ?)", (number, octets))
        execute("delete from chunk where number < ?", (first,))
        execute("commit")
        self.check_files()

    def check_files(self):
        """Raise if a file was replaced: SQLite writes to open files even if the next start will not find them.

        Raises
        ------
        FileNotFoundError
            A file was moved, removed or replaced.
        """
        for path, identity in self.files:
            try:
                there = identity_of(path)
            except PermissionError:  # the process has given up its rights since it started
                there = identity
            except (FileNotFoundError, NotADirectoryError):
                there = None
            if there != identity:
                raise FileNotFoundError(
                    f"{path} was moved, removed or replaced while the broker ran: put it back, or choose another "
                    "directory, and start the broker again"
                )

    cdef int copy(self, uint64_t number, tuple row) except -1:
        cdef bytes octets
        cdef const uint8_t* data
        cdef int64_t size
        if row is None:  # it was never written, because of an earlier error
            raise ValueError(f"chunk {number} is missing")
        octets = row[0]
        data = <const uint8_t*> PyBytes_AS_STRING(octets)
        size = PyBytes_GET_SIZE(octets)
        with nogil:
            journal_copy(&self.journal, number, data, size)
        return 0

    def close(self):
        """close($self)
        --

        Write the waiting records, and close the database. No thread may append any more.
        """
        with nogil:
            journal_close(&self.journal)
        if self.thread is not None:
            self.thread.join()
        self.connection.close()

    def __dealloc__(self):
        if self.journal.index != NULL:
            journal_free(&self.journal)
