"""Handlers declared by decorator, for ``fairsched run module:app``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from fairsched.config.arguments import check_names
from fairsched.config.consumer_options import COMMAND_OPTIONS, OPTIONS, URL_VARIABLES, default_url
from fairsched.config.lanes import Lanes, as_lanes
from fairsched.config.queue_source import QueueSource
from fairsched.config.queues import Queue
from fairsched.config.weights import normalise
from fairsched.consumer.consumer import Consumer
from fairsched.consumer.explanation import Explanation
from fairsched.consumer.signals import graceful
from fairsched.consumer.state import ConsumerState
from fairsched.delivery.handlers import check_plain
from fairsched.errors import ConfigurationError
from fairsched.publisher import Publisher
from fairsched.scheduling.greenlets import in_main_thread

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fairsched.amqp._publishing import Confirmation
    from fairsched.delivery._delivery import Message

Handler = Callable[["Message"], object]
_H = TypeVar("_H", bound=Handler)
_M = TypeVar("_M", bound=Callable[..., object])


_LANES_OPTIONS = ", ".join(option.name for option in fields(Lanes) if option.name != "name")


class App:
    """An application: queues, their weights and their handlers, declared by decorators.

    Parameters
    ----------
    url : str or sequence of str, optional
        The broker; by default the first of the environment variables ``FAIRSCHED_URL``, ``RABBITMQ_URL``, ``AMQP_URL``
        and ``CLOUDAMQP_URL`` that is set.
    **options
        As for `Consumer`.

    Raises
    ------
    TypeError
        If `Consumer` has no such option.

    Attributes
    ----------
    queues : dict of str to Queue or Lanes
        The declared queues and lanes.
    weights : dict
        Weight per declared queue.
    handlers : dict
        Handler per declared queue; one for all lanes of a name.
    options : dict
        As given.

    Notes
    -----
    Declare handlers in one thread, before `run`. `stop`, `set_weight`, `pause`, `resume`, `explain`, `stats` and
    `state` are safe from any thread.

    Examples
    --------
    >>> app = App()
    >>> @app.consumer("gold", weight=40)
    ... def gold(message):
    ...     print(message.body)
    """

    def __init__(self, url: str | Sequence[str] | None = None, **options: Any) -> None:
        check_names(options, [name for name in OPTIONS if name not in ("url", *COMMAND_OPTIONS)] + ["middleware"])
        self.url = url
        self.options = options
        self.queues: dict[str, Queue | Lanes] = {}
        self.handlers: dict[str, Handler] = {}
        self._source: QueueSource | None = None
        self._source_handler: Handler | None = None
        self._consumer: Consumer | None = None
        #: Called in a thread of its own on SIGHUP, while `run` runs; None: SIGHUP is left alone.
        self._reload: Callable[[], object] | None = None
        #: That a consumer was made with.
        self._used: str | Sequence[str] | None = None
        self._publisher: Publisher | None = None
        self._guard = threading.Lock()

    def consumer(self, queue: str | Queue | Lanes | QueueSource, **options: Any) -> Callable[[_H], _H]:
        """Declare the decorated function as the handler of a queue, of all lanes of a name, or of a source's queues.

        Parameters
        ----------
        queue : str, Queue, Lanes or QueueSource
            The queue, or its name; or lanes. A `QueueSource`, of which an app may have one: the function handles all
            queues of it that have no handler of their own.
        **options
            If `queue` is a name: ``weight`` and the other parameters of `Queue`.

        Returns
        -------
        callable
            The decorator. It returns the function unchanged, so one function can handle several queues.

        Raises
        ------
        ConfigurationError
            If an option is invalid, or the queue already has a handler. Raised by the decorator if it is applied to
            something other than a function, or to a coroutine function or generator function, whose code a call does
            not run.
        """
        if options and isinstance(queue, Queue | Lanes | QueueSource):
            raise TypeError(f"pass {next(iter(options))} to {type(queue).__name__}(...), not to consumer()")
        if isinstance(queue, QueueSource):
            return self._source_consumer(queue)
        declared: Queue | Lanes
        if isinstance(queue, Queue | Lanes):
            declared = queue
        else:
            check_names(options, [field.name for field in fields(Queue)])
            declared = Queue(queue, **options)
        name = declared.name
        if name in self.handlers:
            raise ConfigurationError(f"queue {name!r} has a handler already: {self.handlers[name]!r}")

        def declare(handler: _H) -> _H:
            check_plain(handler, f"handler of queue {name!r}")
            self.queues[name] = declared
            self.handlers[name] = handler
            return handler

        return declare

    def _source_consumer(self, source: QueueSource) -> Callable[[_H], _H]:
        if self._source is not None:
            raise ConfigurationError(f"an app has one source of queues, got {self._source} and {source}")

        def declare(handler: _H) -> _H:
            check_plain(handler, "handler of a source of queues")
            self._source, self._source_handler = source, handler
            return handler

        return declare

    def add_queue(self, queue: str | Queue, handler: Handler | None = None) -> None:
        """Consume another queue, in the running consumer too, as `Consumer.add_queue` does.

        Parameters
        ----------
        queue : str or Queue
            The queue, or its name.
        handler : callable, optional
            Its handler; by default the one that was declared for it, or for a source of queues.

        Raises
        ------
        ConfigurationError
            If the queue has no handler, or has one and another is given.
        Exception
            As for `Consumer.add_queue`. Then the app has no handler for the queue that it did not have before.
        """
        declared = queue if isinstance(queue, Queue) else Queue(queue)
        if handler is not None:
            self.consumer(declared)(handler)
        elif declared.name not in self.handlers and self._source_handler is None:
            raise ConfigurationError(f"no handler for queue {declared.name!r}; there are {sorted(self.handlers)}")
        consumer = self._consumer
        if consumer is not None:
            try:
                consumer.add_queue(declared)
            except BaseException:
                # An exception that interrupted the wait, such as KeyboardInterrupt, leaves the addition under way.
                if handler is not None and declared.name not in consumer._client.settings.queues:
                    del self.queues[declared.name], self.handlers[declared.name]
                raise

    def remove_queue(self, queue: str) -> None:
        """Stop consuming a queue in the running consumer, as `Consumer.remove_queue` does, and forget its handler."""
        consumer = self._consumer
        if consumer is not None:
            consumer.remove_queue(queue)
        elif queue not in self.queues:
            raise ConfigurationError(f"no handler for queue {queue!r}; there are {sorted(self.handlers)}")
        self.queues.pop(queue, None)
        self.handlers.pop(queue, None)

    def middleware(self, function: _M) -> _M:
        """Declare the decorated function as middleware, inside the middleware declared before it.

        Parameters
        ----------
        function : callable
            ``function(message, call_next)`` is called instead of each handler, and calls the handler with
            ``call_next(message)``.

        Raises
        ------
        ConfigurationError
            If `function` is a coroutine function or a generator function.

        Examples
        --------
        >>> app = App()
        >>> @app.middleware
        ... def log(message, call_next):
        ...     print("begin", message.queue)
        ...     return call_next(message)
        """
        check_plain(function, "middleware")
        self.options["middleware"] = [*self.options.get("middleware", ()), function]
        return function

    def make_consumer(self, url: str | Sequence[str] | None = None, **overrides: Any) -> Consumer:
        """Return the consumer that `run` would use, not yet connected.

        Parameters
        ----------
        url : str or sequence of str, optional
            Overrides the URL of the app.
        **overrides
            Override the options of the app. ``queues`` selects some of the declared queues: a list keeps their weights;
            a mapping gives each a new weight, or a mapping of the `Queue` parameters to override. ``source`` is a
            `QueueSource` in place of the app's.

        Returns
        -------
        Consumer
            To be run with `dispatch` as the handler.

        Raises
        ------
        ConfigurationError
            If no URL is known, no queue is declared, or an option is invalid.
        """
        found = self._used = self._found(url)
        options = {**self.options, **overrides}
        queues = self._selected(options.pop("queues", None), options.pop("source", None))
        consumer = Consumer(found, queues, **options)
        # For `Message.reply`; called when a handler first answers, so that without answers there is one connection.
        consumer._client.publisher = lambda: self.publisher
        return consumer

    def _found(self, url: str | Sequence[str] | None) -> str | Sequence[str]:
        found = url or self.url or default_url()
        if not found:
            raise ConfigurationError(f"no broker URL: give one, or set one of {', '.join(URL_VARIABLES)}")
        return found

    def _selected(
        self,
        queues: Mapping[str, Any] | Lanes | Sequence[str | Queue | Lanes] | None,
        source: QueueSource | None = None,
    ) -> dict[str, Queue | Lanes] | list[Queue | Lanes | QueueSource]:
        """Return the option `queues` of a consumer; `source` replaces that of the app."""
        if source is not None and self._source is None:
            raise ConfigurationError(
                f"no handler for the queues of {source}: decorate one with @app.consumer(QueueSource(...)), whose "
                "source is replaced"
            )
        if queues is None:
            source = source or self._source
            return dict(self.queues) if source is None else [*self.queues.values(), source]
        chosen = self._chosen(queues)
        return chosen if source is None else [*chosen.values(), source]

    def _chosen(self, queues: Mapping[str, Any] | Lanes | Sequence[str | Queue | Lanes]) -> dict[str, Queue | Lanes]:
        """Return those of the declared queues that are named, with what is said of them."""
        if isinstance(queues, Lanes):
            queues = [queues]
        names = [one.name if isinstance(one, Queue | Lanes) else one for one in queues]
        unknown = [name for name in names if name not in self.handlers]
        if unknown:
            raise ConfigurationError(f"no handler for queue {unknown[0]!r}; there are {sorted(self.handlers)}")
        if isinstance(queues, Mapping):
            return {name: self._overridden(self.queues[name], given) for name, given in queues.items()}
        return {name: self._overridden(self.queues[name], one) for name, one in zip(names, queues, strict=True)}

    def _overridden(self, declared: Queue | Lanes, given: Any) -> Queue | Lanes:
        """Return a declared queue with another weight, or a queue or lanes with the other options that are given."""
        if isinstance(given, Queue | Lanes):
            return given
        if isinstance(given, str):  # its name
            return declared
        if lanes := as_lanes(declared.name, given):
            return lanes
        options = given if isinstance(given, Mapping) else {"weight": given}
        if isinstance(declared, Lanes):
            raise ConfigurationError(f"lanes {declared.name!r} have only {_LANES_OPTIONS}, got {given!r}")
        check_names(options, [field.name for field in fields(Queue)])
        return replace(declared, **options)

    def dispatch(self, message: Message) -> object:
        """Call the handler of a message's queue, or of the lanes that its queue is one of."""
        handler = self.handlers.get(message.queue)
        return (self._other_handler(message.queue) if handler is None else handler)(message)

    def _other_handler(self, queue: str) -> Handler:
        """Return the handler of the lanes that a queue is one of, or that of the source. O(declared lanes)."""
        for name, lanes in self.queues.items():
            if isinstance(lanes, Lanes) and lanes.is_lane(queue):
                return self.handlers[name]
        if self._source_handler is None:
            raise ConfigurationError(f"no handler for queue {queue!r}; there are {sorted(self.handlers)}")
        return self._source_handler

    def run(self, url: str | Sequence[str] | None = None, **overrides: Any) -> None:
        """Consume until SIGTERM, SIGINT or `stop`.

        Parameters
        ----------
        url, **overrides
            As for `make_consumer`.

        Raises
        ------
        ConfigurationError
            As for `make_consumer`.
        ConnectionFailed, QueueNotFound
            If consuming cannot start.
        PublishFailed
            If published messages were not confirmed, or failed without their `Confirmation` being asked.

        Notes
        -----
        Blocks. On the first signal, the consumer finishes the buffered messages, acks and closes. On the second, it
        requeues them and lets running handlers finish. On the third, it exits at once. Outside the main thread, signal
        handlers are not installed.
        """
        consumer = self._consumer = self.make_consumer(url, **overrides)
        in_main = in_main_thread()
        try:
            with graceful(consumer.stop, reload=self._reload) if in_main else nullcontext():
                consumer.run(self.dispatch)
        finally:
            self._consumer = None
            self._close_publisher()

    @property
    def weights(self) -> dict[str, int]:
        """Weight per declared queue; lanes have none, since their tenants have."""
        return {name: queue.weight for name, queue in self.queues.items() if isinstance(queue, Queue)}

    @property
    def publisher(self) -> Publisher:
        """The publisher of this app, for use in handlers. It connects on first use, and `run` closes it at the end.

        Safe from any thread. If a message that a handler published fails and its `Confirmation` was not asked, `run`
        may raise at its end: see `Publisher.close`.
        """
        with self._guard:
            if self._publisher is None:
                publisher = Publisher(self._found(self._used))
                publisher.open()
                self._publisher = publisher
            return self._publisher

    def publish(self, body: Buffer, routing_key: str = "", **values: Any) -> Confirmation:
        """Publish a message with the `publisher`, as `Publisher.publish` does.

        Parameters
        ----------
        body, routing_key, **values
            As for `Publisher.publish`.

        Returns
        -------
        Confirmation
            Tells whether the broker has confirmed the message; it need not be kept.

        Raises
        ------
        Exception
            As for `Publisher.open` and `Publisher.publish`.

        Examples
        --------
        >>> app = App()
        >>> @app.consumer("orders")
        ... def order(message):
        ...     app.publish(message.body, "invoices").result()
        """
        return self.publisher.publish(body, routing_key, **values)

    def _close_publisher(self) -> None:
        with self._guard:
            publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()

    def stop(self, now: bool = False) -> None:
        """Stop the running consumer, if any, as `Consumer.stop` does."""
        if self._consumer is not None:
            self._consumer.stop(now)

    def set_weight(self, queue: Hashable, weight: int) -> None:
        """Change the weight of a queue, or with a `key` of a tenant, as `Consumer.set_weight` does.

        The weight applies to the running consumer; that of a declared queue also applies to later consumers.
        """
        consumer = self._consumer
        if consumer is not None:
            consumer.set_weight(queue, weight)
        elif queue not in self.queues:
            raise ConfigurationError(f"no handler for queue {queue!r}; there are {sorted(self.handlers)}")
        declared = self.queues.get(queue) if isinstance(queue, str) else None
        if isinstance(declared, Queue):
            normalise({queue: weight})  # for its checks
            self.queues[declared.name] = replace(declared, weight=weight)

    def pause(self, queue: str) -> None:
        """Stop consuming a queue in the running consumer, as `Consumer.pause` does.

        Raises RuntimeError if no consumer is running.
        """
        self._running().pause(queue)

    def resume(self, queue: str) -> None:
        """Consume a queue again in the running consumer, as `Consumer.resume` does.

        Raises RuntimeError if no consumer is running.
        """
        self._running().resume(queue)

    def explain(self, name: Hashable) -> Explanation:
        """Explain why a queue, or with a `key` a tenant, waits in the running consumer, as `Consumer.explain` does.

        Raises RuntimeError if no consumer is running.
        """
        return self._running().explain(name)

    def _running(self) -> Consumer:
        consumer = self._consumer
        if consumer is None:
            raise RuntimeError("no consumer of this app is running")
        return consumer

    def stats(self) -> dict[str, Any]:
        """Return the statistics of the running consumer; an empty dict if there is none."""
        consumer = self._consumer
        return {} if consumer is None else consumer.stats()

    @property
    def state(self) -> ConsumerState:
        """State of the running consumer, as from `Consumer.state`; a state that says so if there is none."""
        consumer = self._consumer
        return ConsumerState() if consumer is None else consumer.state
