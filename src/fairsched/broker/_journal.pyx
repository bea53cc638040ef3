"""The store of a broker that survives: a journal in a SQLite database, written by a thread of its own.

Thread safety: whoever is compiled appends from any thread without the GIL (core/broker/durability/journal.pxd); the
methods here are for one thread, but `close`, which may be called twice and from any.
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

#: What a database says it is, so that no other is taken for one.
APPLICATION = 0x46534A31
#: The form of chunks and records that is written here. Who changes it reads the older ones, too.
FORMAT = 1


def database_in(directory):
    """Return the path of the database in a directory; both are made if they are not there, for this user alone."""
    path = os.path.join(directory, "broker.db")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        # Who is there is not opened here: to close it would end the locks that a broker of this process has on it.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        folder = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(folder)  # the file's name, too, is to be there after a power cut
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
    """Return what tells a file from one that takes its name."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


cdef class Store:
    """Store(directory)
    --

    The journal of one broker.

    Parameters
    ----------
    directory : str or path
        Where its database is, `broker.db`; both are made if they are not there, for this user alone.

    Attributes
    ----------
    path : str
        The file.
    error : Exception or None
        Why nothing more gets on disk.

    Raises
    ------
    RuntimeError
        The database belongs to a broker that runs.
    ValueError
        The file is another database, is damaged, or was written by a later version.
    OSError
        The directory cannot be made, or not be written to.

    Notes
    -----
    SQLite's write-ahead log is written and synchronised once a batch (`synchronous=full`), so a batch is on disk
    whole or not at all, whatever ends the process or the machine. Opening is O(octets stored).
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
        """Return the exception to raise, instead of an error of SQLite, when the database is opened."""
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
        return OSError(f"{path} cannot be read and written ({error}): see to its disk, or choose another directory")

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
        whole = os.path.abspath(path)  # of the process's directory of now
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
            good = number > 0 and type(octets) is bytes  # a damaged page may have any number, and any type of SQLite's
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
        """Why nothing more gets on disk, as text; None: it does."""
        if self.error is not None:
            return f"{type(self.error).__name__}: {self.error}"
        return "memory is exhausted" if self.journal.failed.load() else None

    def records(self):
        """records($self)
        --

        What was put and not dropped when the store was opened, once: a list of (id, kind, octets), by their ids.

        `Broker` reads the same records without making objects of them.
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

        Write what was appended so far, in this thread; before `start`.

        Raises
        ------
        OSError
            It could not be written.
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

        Start to write. Nobody is told before that what the records say is on disk.
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
            _log.critical("%s cannot be written any more: nothing durable is taken", self.path, exc_info=error)
            with nogil:
                journal_refused(&self.journal)

    def write(self, uint64_t number):
        """Write the batch that was taken, and forget what nobody needs, in one transaction."""
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
        """Raise unless the files are still what the next start finds: SQLite writes to any that is open.

        Raises
        ------
        FileNotFoundError
            One was moved, removed or replaced.
        """
        for path, identity in self.files:
            try:
                there = identity_of(path)
            except PermissionError:  # of a process that has given up its rights since it started
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
        if row is None:  # it was taken and not written: there was an error before
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

        Write what waits, and close the database. Nothing is appended any more.
        """
        with nogil:
            journal_close(&self.journal)
        if self.thread is not None:
            self.thread.join()
        self.connection.close()

    def __dealloc__(self):
        if self.journal.index != NULL:
            journal_free(&self.journal)
