"""Retries: a message that failed waits at the broker, and comes back to its queue.

A queue that delays retries itself (`delayed_retries`) gets the message back by one basic.reject. For any other, a copy
of the message waits in a queue of its own, and the message is acknowledged: in this order, so that nothing is lost
whenever the process dies, and something may at worst come twice:

1. The queue that the copy is to wait in is declared. Its messages live as long as the delay; what expires in it, the
   broker dead-letters to the queue that the message came from. So there is one for each delay: in a queue whose
   messages live differently long, one that is due stands behind one that is not.
2. The copy is published there, and confirmed by the broker.
3. The message is acknowledged.

A queue for a delay is deleted by the broker (``x-expires``) when it has not been declared for its delay and `LEASE`
seconds. What is still in it then would be lost. So it is declared again before a copy is published, if it was not
lately, and a copy that was not confirmed soon after that counts for nothing: another is published.

Source: RabbitMQ, "Time-To-Live and Expiration" and "Dead Letter Exchanges".
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any

from fairsched.amqp._ackledger import AckLedger
from fairsched.amqp._properties import encode_properties
from fairsched.amqp.fieldtables import read_table, replace_fields
from fairsched.amqp.properties import DEATH_HEADERS, read_encoded
from fairsched.consumer.declarations import Declaration, Declarations
from fairsched.consumer.handling.delayed_retries import DelayedRetries, failures
from fairsched.consumer.handling.described import described, shown
from fairsched.consumer.requeueing.budget import COUNTS
from fairsched.delivery._settling import note_failures, settle_failed
from fairsched.errors import ConnectionFailed, MessageReturned, PublishFailed
from fairsched.publisher.client import Client as PublisherClient
from fairsched.publisher.options import PublisherOptions

if TYPE_CHECKING:
    from fairsched.amqp._publishing import Confirmation
    from fairsched.config.retry import Retry
    from fairsched.delivery._delivery import Message

_log = logging.getLogger(__name__)

#: Headers of a copy: how often the handler was called, and what came of the last call.
ATTEMPTS, EXCEPTION = "x-attempts", "x-exception"
#: Headers of a copy: what the message had, and a copy cannot have.
QUEUE, EXCHANGE, ROUTING_KEY = "x-original-queue", "x-original-exchange", "x-original-routing-key"
EXPIRATION, USER_ID = "x-original-expiration", "x-original-user-id"
COPIED_TO, DEATHS = "x-original-cc", "x-original-death"
#: What a stream adds to the headers of its messages.
OFFSET = "x-stream-offset"
#: Headers that a copy does not have: some would route it to other queues, and it is in no stream. Deliveries of the
#: message are none of the copy.
_WITHOUT = ("CC", "BCC", OFFSET, *DEATH_HEADERS, *COUNTS)

#: Seconds for which a queue for a delay outlives its messages, at least; after which it is declared again before a copy
#: is published; and within which a copy must be confirmed.
LEASE, RENEWAL, SAFE = 600.0, 60.0, 300.0
#: Characters of an exception that are kept, since all headers together have to fit into one frame.
_LONGEST_TEXT = 1000
#: No more attempts are counted, since a header can hold any number, and one more must fit into it, too.
_MOST_ATTEMPTS = 1_000_000
#: How often a copy is published, if the broker returned it because there is no queue.
_TRIES = 3

_HEADER = Struct(">HHQ")
_NO_HEADERS = b"\0\0\0\0"


def delay_queue(queue: str, seconds: float) -> str:
    """Return the name of the queue in which messages of a queue wait for so long."""
    return f"{queue}.retry.{round(seconds * 1000)}"


def delay_declaration(queue: str, seconds: float) -> Declaration:
    """Return what declares the queue in which messages of a queue wait for so long."""
    milliseconds = round(seconds * 1000)
    arguments = {
        "x-queue-type": "classic",
        "x-message-ttl": milliseconds,
        "x-expires": milliseconds + round(LEASE * 1000),
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
    }
    return Declaration(
        delay_queue(queue, seconds), f"retry= of queue {queue!r} needs to declare {delay_queue(queue, seconds)!r}",
        arguments,
    )  # fmt: skip


def dead_letter_declaration(queue: str, name: str) -> Declaration:
    """Return what declares the queue for messages of a queue that failed for the last time."""
    return Declaration(name, f"retry= of queue {queue!r} needs {name!r} for dead letters", if_missing=True)


def first_declarations(rules: Mapping[str, Retry], delayed: Collection[str] = ()) -> list[Declaration]:
    """Return what is declared at the start: enough to learn that it may be.

    The queues in `delayed` delay their messages themselves.
    """
    found = []
    for queue, retry in rules.items():
        if retry.max_attempts > 1 and queue not in delayed:
            found.append(delay_declaration(queue, retry.delays(1)[-1]))
        name = retry.dead_letters_of(queue)
        if name is not None:
            found.append(dead_letter_declaration(queue, name))
    return found


def attempts_before(message: Message, queue: str | None = None) -> int:
    """Return how often a message failed before, as its copy says.

    A count of another queue than `queue`, by default that of the message, is none of this one: a consumer of dead
    letters begins anew, and a header of this name that a producer uses for something of its own counts nothing.
    """
    try:
        headers = message.headers
    except Exception:
        return 0  # headers that cannot be decoded say nothing
    found = headers.get(ATTEMPTS)
    if not isinstance(found, int) or isinstance(found, bool) or headers.get(QUEUE) != (queue or message.queue):
        return 0
    return min(max(0, found), _MOST_ATTEMPTS)


def _can_come_again(message: Message) -> bool:
    """Whether a copy can have a header that counts, and come back.

    It cannot count if the other headers cannot be decoded. And RabbitMQ before 3.12 drops what is dead-lettered into a
    stream.
    """
    try:
        return OFFSET not in message.headers
    except Exception:
        return False


class _Copy:
    """One copy on its way."""

    __slots__ = ("bare", "declaration", "declared", "message", "outgoing", "tries", "what")

    def __init__(
        self, message: Message, declaration: Declaration, properties: bytes, what: str, bare: bool = False
    ) -> None:
        self.message = message
        self.declaration = declaration
        self.outgoing = ("", declaration.queue, properties, message.body, True)
        self.what = what
        #: Whether it has no headers of ours.
        self.bare = bare
        self.tries = 0
        #: When the queue was declared that it was published to.
        self.declared = 0.0


class Retries:
    """Retries messages that failed, or dead-letters them.

    Parameters
    ----------
    rules : mapping of str to Retry
        By queue.
    urls : sequence of str
        Of the broker.
    delayed : DelayedRetries
        Knows which queues delay retries themselves.
    give_back : callable
        Returns a message to its queue when no copy could be published.
    home : callable
        Returns the queue that a message of a queue comes back to after its delay: a lane of a tenant alone may be
        deleted meanwhile, and what the broker dead-letters to a queue that is gone is lost.

    Notes
    -----
    Safe from any thread. Nothing is made before the first failure: then it connects once more, to publish. Nothing here
    waits: the caller goes on, and the message is unsettled until its copy is confirmed.
    """

    def __init__(
        self,
        rules: Mapping[str, Retry],
        urls: Sequence[str],
        delayed: DelayedRetries,
        give_back: Callable[[Message], object],
        home: Callable[[str], str] = str,
    ) -> None:
        self._rules = rules
        self._home = home
        self._urls = urls
        self._delayed = delayed
        self._give_back = give_back
        self._declarations: Declarations | None = None
        self._ended: Callable[[], bool] = lambda: False
        self._publisher: PublisherClient | None = None
        #: When a queue was declared last, and what waits for its declaration.
        self._declared: dict[str, float] = {}
        self._asked: dict[str, list[_Copy]] = {}
        #: What waits for room in the window of the publisher.
        self._ready: deque[_Copy] = deque()
        self._guard = threading.RLock()
        #: Held by the thread that puts messages into the window.
        self._turn = threading.Lock()
        self._look = False
        self._closed = False
        self._counts = {"retried": 0, "dead_lettered": 0, "retrying": 0, "retry_failures": 0}

    def covers(self, queue: str) -> bool:
        """Whether messages of a queue are retried."""
        return self._home(queue) in self._rules

    def failed_before(self, message: Message) -> bool:
        """Whether a message is a copy of one that failed."""
        return self._attempts_before(message, self._home(message.queue)) > 0

    def take(self, rules: Mapping[str, Retry]) -> None:
        """Retry messages of other queues, too; forget what was declared for queues that are gone."""
        gone = [(name, rule) for name, rule in self._rules.items() if name not in rules]
        self._rules = rules
        with self._guard:
            for name, rule in gone:
                for delay in rule.all_delays():
                    self._declared.pop(delay_queue(name, delay), None)

    def begin(self, declarations: Declarations, ended: Callable[[], bool]) -> None:
        """Take what declares queues, and what says whether the consumer has ended, closed or not."""
        self._declarations = declarations
        self._ended = ended

    def settle(self, message: Message, error: Exception, final: bool = False) -> str:
        """Begin to settle a message whose handler raised; return what becomes of it, for the log.

        `final`: it is not handled again, whatever the failure was.
        """
        home = self._home(message.queue)
        retry = self._rules[home]
        attempt = self._attempts_before(message, home) + 1
        final = final or not _can_come_again(message)
        if not final and attempt < retry.max_attempts and _wanted(retry, message, error):
            if home == message.queue and self._delayed.delays(message):
                return self._reject(message, retry, attempt)
            delay = retry.delay(attempt)
            what = f"retry in {delay:g} s, attempt {attempt} of {retry.max_attempts} failed"
            self.send(message, delay_declaration(home, delay), attempt, error, "retried")
            return what
        return self._end(message, home, attempt, error)

    def end_if_exhausted(self, message: Message) -> bool:
        """Dead-letter a message of which a lost connection ended the last attempt; return whether it is one.

        Only a queue that counts says so. No handler has the message.
        """
        home = self._home(message.queue)
        retry = self._rules.get(home)
        if retry is None or home != message.queue or not self._delayed.counts(message):
            return False
        self._delayed.look(message)
        attempts = self._attempts_before(message, home)
        if attempts < retry.max_attempts or not note_failures([message]):
            return False
        error = ConnectionFailed("the connection or the process of the consumer ended during the last attempt")
        _log.error(
            "message %d of queue %r has used all its attempts, %d, and is not handled; settled by: %s",
            message.delivery_tag, message.queue, attempts, self._end(message, home, attempts, error),
        )  # fmt: skip
        return True

    def _attempts_before(self, message: Message, home: str) -> int:
        """Return how often a message failed before, as its copy and its queue say."""
        before = attempts_before(message, home)
        if home == message.queue and self._delayed.counts(message):
            before += failures(message)
        return before

    def _reject(self, message: Message, retry: Retry, attempt: int) -> str:
        """Have the queue of a message delay and count it; return what becomes of it, for the log."""
        seconds = retry.delay(failures(message) + 1)
        self._delayed.rejecting(message, seconds)  # before it may come back
        if settle_failed(message, AckLedger.FAIL):
            self._count("retried")
        return f"retry in {seconds:g} s by the queue, attempt {attempt} of {retry.max_attempts} failed"

    def _end(self, message: Message, home: str, attempt: int, error: Exception) -> str:
        """Begin to dead-letter a message; return what becomes of it, for the log."""
        name = self._rules[home].dead_letters_of(home)
        if name is None:
            if settle_failed(message, AckLedger.REJECT):
                self._count("dead_lettered")
            return f"reject, after attempt {attempt}"
        self.send(message, dead_letter_declaration(home, name), attempt, error, "dead_lettered")
        return f"dead letter in {name!r}, after attempt {attempt}"

    def stats(self) -> dict[str, int]:
        """Return messages that were ``retried`` and ``dead_lettered``; those that are being so, ``retrying``; and
        ``retry_failures``, those that were requeued since no copy could be published.
        """
        with self._guard:
            return dict(self._counts)

    def close(self, timeout: float) -> None:
        """Publish nothing more, waiting `timeout` seconds at most; what is not confirmed is not acknowledged."""
        with self._guard:
            self._closed = True
            publisher = self._publisher
        if publisher is not None:
            # A broker that takes no messages does not answer a close either.
            thread = threading.Thread(target=publisher.end, name="fairsched-control", daemon=True)
            thread.start()
            thread.join(timeout)

    def _count(self, what: str, change: int = 1) -> None:
        with self._guard:
            self._counts[what] += change

    def send(self, message: Message, declaration: Declaration, attempt: int, error: Exception, what: str) -> None:
        """Begin to publish a copy of a message, which is acknowledged once the broker has that."""
        if message.settled or not message.alive:
            settle_failed(message, AckLedger.REQUEUE)  # it is counted, and the broker delivers it again
            return
        copy = _Copy(message, declaration, copy_properties(message, attempt, error, self._home(message.queue)), what)
        self._count("retrying")
        self._prepare(copy)

    # A copy, from step to step: each may run in another thread -----------------------------------------------------

    def _prepare(self, copy: _Copy) -> None:
        """Declare the queue that a copy waits in, if it was not lately."""
        name = copy.declaration.queue
        with self._guard:
            declared = self._declared.get(name)
            now = time.monotonic()
            usable = declared is not None and (copy.declaration.if_missing or now < declared + RENEWAL)
            if usable:
                assert declared is not None
                copy.declared = now if copy.declaration.if_missing else declared
            elif (waiting := self._asked.get(name)) is not None:
                waiting.append(copy)
                return
            else:
                self._asked[name] = [copy]
        if usable:
            self._publish(copy)
            return
        assert self._declarations is not None
        self._declare(copy.declaration)

    def _declare(self, declaration: Declaration) -> None:
        """Step 1."""
        assert self._declarations is not None
        began = time.monotonic()
        self._declarations.declare(declaration, lambda error: self._on_declared(declaration, began, error))

    def _on_declared(self, declaration: Declaration, began: float, error: BaseException | None) -> None:
        with self._guard:
            copies = self._asked.pop(declaration.queue, [])
            if error is None:
                self._declared[declaration.queue] = began
        for copy in copies:
            if error is not None:
                self._failed(copy, str(error))
            else:
                copy.declared = began
                self._publish(copy)

    def _publish(self, copy: _Copy) -> None:
        """Step 2."""
        copy.tries += 1
        self._ready.append(copy)
        self._put_ready()

    def _put_ready(self) -> None:
        """Give the window of the publisher what it has room for."""
        self._look = True
        while self._look and self._turn.acquire(blocking=False):
            # A thread that comes meanwhile finds the turn taken, and has this one look again.
            self._look = False
            try:
                under_way, failed, too_long = self._put_some()
            finally:
                self._turn.release()
            for copy, confirmation in under_way:
                confirmation.add_done_callback(partial(self._on_done, copy))
            for copy, reason in failed:
                self._failed(copy, reason)
            for copy in too_long:
                self._send_bare(copy)

    def _put_some(self) -> tuple[list[tuple[_Copy, Confirmation]], list[tuple[_Copy, str]], list[_Copy]]:
        under_way: list[tuple[_Copy, Confirmation]] = []
        failed: list[tuple[_Copy, str]] = []
        too_long: list[_Copy] = []
        try:
            publisher = self._open_publisher()
            publisher.check_open()
        except Exception as error:
            while self._ready:
                failed.append((self._ready.popleft(), str(error)))
            return under_way, failed, too_long
        if not publisher.begun:  # how long headers may be is known when there is a connection; it is told then
            return under_way, failed, too_long
        window = publisher.window
        while self._ready:
            copy = self._ready.popleft()
            try:
                window.queueing = False
                found = window.put(*copy.outgoing)
                if found is None:
                    # Told when there is room; perhaps there is by now.
                    window.queueing = True
                    found = window.put(*copy.outgoing, in_turn=True)
            except ValueError as error:
                if copy.bare:
                    failed.append((copy, str(error)))
                else:
                    too_long.append(copy)
                continue
            except Exception as error:
                failed.append((copy, str(error)))
                continue
            if found is None:
                self._ready.appendleft(copy)
                break
            under_way.append((copy, found))
        return under_way, failed, too_long

    def _send_bare(self, copy: _Copy) -> None:
        """Dead-letter a message at once whose headers have no room for a count: it would be retried for ever."""
        message = copy.message
        home = self._home(message.queue)
        name = self._rules[home].dead_letters_of(home)
        _log.warning(
            "the headers of message %d of queue %r fill a frame, so its attempts cannot be counted: it is %s",
            message.delivery_tag, message.queue, "refused" if name is None else f"a dead letter in {name!r} as it is",
        )  # fmt: skip
        if name is not None:
            declaration = dead_letter_declaration(home, name)
            self._prepare(_Copy(message, declaration, bare_properties(message), "dead_lettered", bare=True))
        elif settle_failed(message, AckLedger.REJECT):
            self._count("dead_lettered")

    def _open_publisher(self) -> PublisherClient:
        with self._guard:
            if self._closed:
                raise PublishFailed("the consumer is closed")
            if self._publisher is None:
                publisher = PublisherClient(PublisherOptions(self._urls))
                publisher.on_change = self._put_ready
                publisher.orphaned = self._ended
                publisher.start()
                self._publisher = publisher
            return self._publisher

    def _on_done(self, copy: _Copy, confirmation: Confirmation) -> None:
        """Settle the message whose copy the broker confirmed, or which failed."""
        error = confirmation.exception(0)
        if error is None:
            if time.monotonic() < copy.declared + SAFE:
                self._acknowledge(copy)
            elif copy.message.alive:
                self._prepare(copy)  # its queue may be gone already, and the copy with it
            else:
                self._count("retrying", -1)
        elif isinstance(error, MessageReturned) and copy.tries < _TRIES:
            with self._guard:
                self._declared.pop(copy.declaration.queue, None)
            self._prepare(copy)
        else:
            self._failed(copy, str(error))

    def _acknowledge(self, copy: _Copy) -> None:
        """Step 3."""
        self._count("retrying", -1)
        if settle_failed(copy.message, AckLedger.ACK):
            self._count(copy.what)

    def _failed(self, copy: _Copy, reason: str) -> None:
        self._count("retrying", -1)
        self._count("retry_failures")
        if copy.message.alive and not copy.message.settled:
            _log.error(
                "no copy of message %d of queue %r was published, and it is requeued: %s",
                copy.message.delivery_tag, copy.message.queue, reason,
            )  # fmt: skip
        self._give_back(copy.message)


def _wanted(retry: Retry, message: Message, error: Exception) -> bool:
    try:
        return retry.wants(message, error)
    except Exception as problem:
        _log.error(
            "on= of retry failed (%s); message %d is not retried",
            described(problem), message.delivery_tag, exc_info=shown(problem),
        )  # fmt: skip
        return False


def copy_properties(message: Message, attempt: int, error: Exception, queue: str | None = None) -> bytes:
    """Return the properties of a copy, encoded: those of the message, byte by byte, with some headers more.

    `queue` is the one that it comes back to, by default that of the message.

    Some properties a copy cannot have. An expiration would end the delay, and the broker removes it from what it
    dead-letters. A user id that is not ours closes the channel.
    """
    header, queue = _content_header(message), queue or message.queue
    added: dict[str, Any] = {
        ATTEMPTS: attempt,
        EXCEPTION: described(error)[:_LONGEST_TEXT].encode("utf-8", "replace").decode(),
        QUEUE: queue,
        EXCHANGE: message.exchange,
        ROUTING_KEY: message.routing_key,
    }
    displaced: dict[str, Any] = {}
    found: dict[str, Any] = {}
    try:
        found = read_encoded(header)
        for name, kept in (("expiration", EXPIRATION), ("user_id", USER_ID)):
            if (value := found.pop(name, None)) is not None:
                added[kept] = value
        table = found.get("headers", _NO_HEADERS)
        headers, _ = read_table(table, 0)
        if headers.get(QUEUE) == queue:  # it was a copy itself
            for name in (QUEUE, EXCHANGE, ROUTING_KEY):
                added.pop(name)
        elif "x-death" in headers:
            displaced[DEATHS] = headers["x-death"]
        if "CC" in headers:
            displaced[COPIED_TO] = headers["CC"]
        try:
            table = replace_fields(table, {**added, **displaced}, _WITHOUT)
        except (TypeError, ValueError):  # a number too large to be written again, and without a count it had no end
            table = replace_fields(table, added, _WITHOUT)
        return encode_properties({**found, "headers": table})
    except (TypeError, ValueError) as problem:
        _log.warning("the copy of message %d has no header that says why: %s", message.delivery_tag, problem)
    try:
        return encode_properties(found)
    except (TypeError, ValueError):
        return header[12:]  # as it came


def bare_properties(message: Message) -> bytes:
    """Return the properties of a copy without headers of ours, encoded: no longer than those of the message."""
    found = read_encoded(_content_header(message))
    for name in ("expiration", "user_id"):
        found.pop(name, None)
    return encode_properties({**found, "headers": replace_fields(found.get("headers", _NO_HEADERS), {}, _WITHOUT)})


def _content_header(message: Message) -> bytes:
    raw = message.raw_properties
    before = _HEADER.pack(60, 0, len(message.body))  # class, weight, size: pika's own properties come without
    return raw if raw.startswith(before) else before + raw
