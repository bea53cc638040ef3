"""Looking at, declaring, filling and deleting queues of a broker, for the command line."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from fairsched.amqp import session
from fairsched.consumer.signals import graceful
from fairsched.errors import ConnectionFailed
from fairsched.scheduling.greenlets import in_main_thread

#: Messages published before their confirmations are waited for.
_BATCH = 1000
#: If this process is killed, the broker deletes temporary queues that were not used for ten minutes.
_TEMPORARY = {"x-expires": 600_000}


class QueueFound(NamedTuple):
    """An existing queue: messages ready in it, and consumers."""

    messages: int
    consumers: int


class Session(session.Session):
    """A connection with one channel, opened and closed by ``with``.

    Parameters
    ----------
    url : str
        The broker.
    timeout : float
        Seconds that each call may take.

    Notes
    -----
    Within the ``with`` block SIGINT ends the call under way by `interrupt`. The first one leaves the good-bye its
    time, the second does not.
    """

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        super().__init__(url, timeout=timeout)
        self._channel: Any = None
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as ending:
            ending.enter_context(_heeding(self.interrupt))
            self.open()
            self._ending = ending.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._ending:
            self.recover()  # a broker that was slow to answer gets its good-bye, too
            self.close()
        if self.interrupted and kind is not KeyboardInterrupt:
            raise KeyboardInterrupt

    def find(self, queue: str) -> QueueFound:
        """Look at a queue.

        Parameters
        ----------
        queue : str
            Its name.

        Returns
        -------
        QueueFound
            Its numbers of messages and consumers.

        Raises
        ------
        QueueNotFound
            If it does not exist.
        ConnectionFailed
            If the broker refuses to tell.
        """
        answer = self.ask("queue_declare", queue, passive=True)
        return QueueFound(answer.method.message_count, answer.method.consumer_count)

    def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        """Create a durable queue with these arguments."""
        self.ask("queue_declare", queue, durable=True, arguments=dict(arguments))

    def delete(self, *queues: str) -> None:
        """Delete queues and what is in them, in one call; those that do not exist are no error."""
        if not queues:
            return
        channel = self.usable_channel()
        with self.transport:
            # Without a callback pika does not wait for one answer before it sends the next request. A channel is served
            # in order: the answer to the last one says that all are done.
            for queue in queues[:-1]:
                channel.queue_delete(queue)
        self.ask("queue_delete", queues[-1])

    def publish(self, queue: str, bodies: Iterable[bytes]) -> None:
        """Put transient messages into a queue; returns when the broker has confirmed them all."""
        everything = iter(bodies)
        channel = self.usable_channel()
        while batch := list(itertools.islice(everything, _BATCH)):
            for body in batch:
                channel.basic_publish("", queue, body)
            self.find(queue)  # which the broker answers only after it has read everything

    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the channel, and return the broker's answer."""
        request = partial(getattr(self.usable_channel(), method), *arguments, **named)
        return self.call([request], method.replace("_", "."))[0]

    def usable_channel(self) -> Any:
        """Return the channel; another one if the broker closed it."""
        if self._channel is None or not self._channel.is_open:
            self.recover()
            self._channel = self.channel()
        return self._channel


@contextmanager
def temporary_queues(url: str, bodies: Mapping[str, Iterable[bytes]]) -> Iterator[None]:
    """Declare and fill queues; delete them whatever happens.

    All of them: one that an interrupt found being declared may be there, and deleting one that is not is no error. A
    deletion that is interrupted itself is begun again, once.

    Parameters
    ----------
    url : str
        The broker.
    bodies : mapping of str to iterable of bytes
        By queue, what is in it at first.
    """
    try:
        with Session(url) as session:
            for name, content in bodies.items():
                session.declare(name, _TEMPORARY)
                session.publish(name, content)
        yield
        _delete(url, bodies)
    except BaseException:
        with suppress(ConnectionFailed):  # what went wrong first is what the user is told
            _delete(url, bodies)
        raise


def _delete(url: str, names: Iterable[str]) -> None:
    with Session(url) as session:
        session.delete(*names)


def _heeding(interrupt: Callable[[bool], object]) -> AbstractContextManager[None]:
    """Report SIGINT instead of raising it, if it would raise: in the main thread, without another handler."""
    here = in_main_thread()
    if here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return graceful(interrupt, (signal.SIGINT,))
    return nullcontext()
