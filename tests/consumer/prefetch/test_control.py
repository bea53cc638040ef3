"""The default windows, chosen anew for each connection."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fairsched import Queue
from fairsched.config.queues import ONE_WINDOW
from fairsched.consumer.prefetch.control import REVIEW, WindowControl
from fairsched.consumer.prefetch.measure import Measurements
from fairsched.consumer.settings import ConsumerSettings

URL = "amqp://guest:guest@localhost/"


class Shop:
    """A window_control, its timers, and two queues whose windows it sets."""

    def __init__(self, a: Queue | str = "a", **options: Any) -> None:
        self.settings = ConsumerSettings(URL, [a, "b"], **options)
        self.service: float | None = None
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.found = [self.channel(name) for name in ("a", "b")]
        self.window_control = WindowControl(
            self, self.settings, Measurements(), lambda: iter(self.found), lambda: self.service
        )

    def call_later(self, delay: float, function: Callable[[], None]) -> None:
        self.due.append((delay, function))

    def channel(self, name: str) -> Any:
        one = SimpleNamespace(queue=name, alive=True, subscribed=False, sizes=[], busy=True)
        one.resize = one.sizes.append
        return one

    def pass_a_period(self) -> None:
        due, self.due = self.due, []
        for delay, function in due:
            assert delay == REVIEW
            function()

    def windows(self) -> list[int]:
        return [self.window_control.window(one.queue) for one in self.found]


def test_the_default_narrows_with_the_next_connection_and_widens_when_handlers_are_fast_again() -> None:
    shop = Shop()
    shop.window_control.connected("connection", ["a", "b"])
    assert shop.windows() == [250, 250]
    shop.service = 0.1
    shop.pass_a_period()
    assert (shop.windows(), shop.found[0].sizes) == ([250, 250], [])  # nothing narrows while it lives
    shop.window_control.disconnected("connection", True)
    shop.window_control.connected("connection", ["a", "b"])
    assert shop.windows() == [5, 5]
    shop.service = 0.06
    shop.pass_a_period()
    assert shop.found[0].sizes == []
    shop.service = 20e-6
    shop.pass_a_period()
    assert (shop.windows(), shop.found[1].sizes) == ([250, 250], [250])


def test_a_single_channel_that_is_opened_again_has_its_window_alone_chosen_anew() -> None:
    shop = Shop()
    shop.window_control.connected("connection", ["a", "b"])
    shop.service = 0.1
    shop.window_control.renew("b")
    assert shop.windows() == [250, 5]


@pytest.mark.parametrize("prefetch", [100, {"a": 50, "b": 50}])
def test_a_number_that_was_asked_for_stays(prefetch: Any) -> None:
    shop = Shop(prefetch=prefetch)
    shop.service = 0.1
    shop.window_control.connected("connection", ["a", "b"])
    assert (shop.windows(), shop.due) == ([50, 50], [])


QUORUM = {"x-queue-type": "quorum", "x-single-active-consumer": True}


@pytest.mark.parametrize("prefetch", [None, 10, 5000, "auto"])
def test_a_quorum_queue_with_a_single_active_consumer_has_the_same_window_everywhere(prefetch: Any) -> None:
    """Its order lasts no longer than that."""
    shop = Shop(Queue("a", durable=True, arguments=QUORUM), prefetch=prefetch)
    found = [shop.windows()[0]]
    for service, answered in (None, False), (0.1, True), (20e-6, True):
        shop.service = service
        shop.window_control.connected("connection", ["a", "b"])
        found.append(shop.windows()[0])
        shop.window_control.disconnected("connection", answered)
    shop.window_control.reweigh(shop.settings.reweighed({"b": 50}))
    found.append(shop.windows()[0])
    added = ConsumerSettings(URL, ["b"], prefetch=prefetch).with_queues({"a": shop.settings.queues["a"]})
    assert {*found, added.windows["a"]} == {ONE_WINDOW}


@pytest.mark.parametrize("options", [{"exclusive": True}, {"arguments": {"x-queue-type": "stream"}, "offset": "first"}])
def test_a_window_that_takes_a_second_consumer_to_change_stays_while_connections_do_not_last(options: Any) -> None:
    """A second consumer of an exclusive one would be refused, and another one of a stream begin elsewhere."""
    shop = Shop(Queue("a", prefetch=200, **options))
    for _ in range(2):
        shop.window_control.connected("connection", ["a", "b"])
        shop.window_control.disconnected("connection", False)
    assert shop.windows() == [200, 3]
