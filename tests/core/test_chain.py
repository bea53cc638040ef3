"""The chain from one thread: sets, targets, sessions and passes, each rule by itself."""

from __future__ import annotations

import pytest

from fairsched import _probe_chain

TASK, CLOSED = -1, -2
DONE, MORE, BLOCKED, SHUT = range(4)
START, TRANSPORT, CREDIT, FLOW = 1, 2, 4, 8


def chain(*shape: int, **options: int) -> _probe_chain.ProbeChain:
    """A chain whose targets are desired, and what they were told of that forgotten."""
    made = _probe_chain.ProbeChain(*shape, **options)
    made.start()
    return made


# -- sets -------------------------------------------------------------------------------------------------------------


def test_a_set_has_everything_once_in_the_order_it_was_added() -> None:
    work = _probe_chain.ProbeWorkset(3)
    assert [work.add(number) for number in (2, 0, 2, 1, 0)] == [True, True, False, True, False]
    assert [work.take() for _ in range(4)] == [2, 0, 1, None]


def test_what_was_taken_can_be_added_again_before_it_is_worked_on() -> None:
    work = _probe_chain.ProbeWorkset(1)
    for _ in range(3):
        assert not work.ready
        assert work.add(0)
        assert work.ready
        assert work.scheduled(0)
        assert work.take() == 0
        assert not work.scheduled(0)


def test_a_set_is_ready_until_the_last_was_taken() -> None:
    work = _probe_chain.ProbeWorkset(4)
    for number in range(4):
        work.add(number)
    for number in range(4):
        assert work.ready
        assert work.take() == number
    assert not work.ready
    assert work.take() is None


# -- targets ----------------------------------------------------------------------------------------------------------


def test_only_changes_of_desire_are_told() -> None:
    """T, F, T, T, close: the consumer sees T, F, T, F, close."""
    one = _probe_chain.ProbeChain()
    one.start()
    one.hinder(0, FLOW)
    one.resume(0, FLOW)
    one.resume(0, FLOW)
    one.close_target(0)
    assert one.seen(0) == [1, 0, 1, 0, 2]
    one.close_target(0)
    one.resume(0, FLOW | 16)
    assert one.seen(0) == [1, 0, 1, 0, 2]
    assert not one.desired(0)


def test_a_target_is_desired_when_nothing_hinders() -> None:
    one = chain()
    one.hinder(0, FLOW)
    one.hinder(0, CREDIT)
    one.resume(0, FLOW)
    assert not one.desired(0)
    one.resume(0, CREDIT)
    assert one.desired(0)
    assert one.seen(0) == [1, 0, 1]


def test_three_queues_strictly_in_turn() -> None:
    one = chain(1, 1, 1, 3)
    for consumer in range(3):
        one.put(consumer, 3)
    assert one.one_pass() == DONE
    assert one.log() == [0, 1, 2] * 3


def test_the_cursor_stays_where_the_last_message_came_from() -> None:
    one = chain(1, 1, 1, 3)
    one.put(0)
    one.one_pass()
    for consumer in range(3):
        one.put(consumer, 2, notify=consumer == 2)
    one.one_pass()
    assert one.log() == [0, 1, 2, 0, 1, 2, 0]


def test_a_call_that_begins_in_the_middle_starts_again_once() -> None:
    one = chain(1, 1, 1, 3)
    one.put(1)
    one.one_pass()
    before = [one.pulls(consumer) for consumer in range(3)]
    one.put(1)
    one.one_pass()
    assert one.log() == [1, 1]
    assert sum(one.pulls(consumer) for consumer in range(3)) - sum(before) <= 2 * 3
    assert one.one_pass() == DONE


def test_nothing_anywhere_is_found_out_by_one_try_each() -> None:
    one = chain(1, 1, 1, 4)
    one.put(0, 0)
    assert one.one_pass() == DONE
    assert [one.pulls(consumer) for consumer in range(4)] == [1] * 4


def test_a_consumer_that_leaves_does_not_skip_a_turn() -> None:
    one = chain(1, 1, 1, 4)
    for consumer in range(4):
        one.put(consumer, 4, notify=False)
    one.hinder(0, FLOW)
    one.resume(0, FLOW)
    one.one_pass()
    assert one.log() == [0, 1, 2, 3] * 4
    one.put(0)
    one.one_pass()  # 1 is next
    assert one.log() == [0]
    assert one.detach(0)
    assert not one.detach(0)
    for consumer in range(1, 4):
        one.put(consumer, 2)
    one.one_pass()
    assert one.log() == [1, 2, 3] * 2
    one.forget(0)
    assert one.attach(0)
    one.put(0)
    one.put(1)
    one.one_pass()
    assert sorted(one.log()) == [0, 1]


def test_a_target_that_is_not_desired_is_not_served() -> None:
    one = chain()
    one.hinder(0, CREDIT)
    one.put(0, 2)
    assert one.one_pass() == DONE
    assert one.log() == []
    assert one.pulls(0) == 0
    one.resume(0, CREDIT)
    assert one.one_pass() == DONE
    assert one.log() == [0, 0]


def test_a_closed_target_takes_no_consumer() -> None:
    one = chain()
    one.close_target(0)
    one.forget(0)
    assert not one.attach(0)


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_targets_with_work_are_served_in_turn_one_message_each() -> None:
    many = chain(1, 1, 5)
    for target in (3, 1, 4, 0, 2):
        many.put(target, 3)
    assert many.one_pass() == DONE
    assert many.log() == [3, 1, 4, 0, 2] * 3


def test_a_target_is_scheduled_once_however_often_it_is_notified() -> None:
    many = chain(1, 1, 2)
    for _ in range(5):
        many.put(0)
    many.put(1, 2)
    many.one_pass()
    assert many.log() == [0, 1, 0, 1, 0, 0, 0]
    assert many.pulls(0) == 6  # the last finds nothing


def test_a_session_is_closed_with_its_targets() -> None:
    many = chain(1, 2, 2)
    for consumer in range(4):
        many.put(consumer)
    many.close_session(0)
    assert many.one_pass() == DONE
    assert many.log() == [2, 3]
    assert [many.seen(consumer)[-2:] for consumer in (0, 1)] == [[0, 2]] * 2
    assert many.disposed() == (0, 0, 0)  # their queues may still notify them
    many.forget(0)
    many.forget(1)
    many.one_pass()
    assert many.disposed() == (2, 1, 0)


def test_a_closed_target_is_kept_while_it_is_in_a_set() -> None:
    one = chain()
    one.put(0)
    one.close_target(0)
    one.forget(0)
    one.one_pass()  # takes it out
    one.one_pass()
    assert one.disposed() == (1, 0, 0)


# -- connections ------------------------------------------------------------------------------------------------------


def test_sessions_are_served_in_turn_whatever_they_have() -> None:
    """The second session has three targets with work: it is served no more often than the first."""
    many = chain(1, 2, 3)
    for consumer in (0, 3, 4, 5):
        many.put(consumer, 3)
    many.one_pass()
    assert many.log()[:8] == [0, 3, 0, 4, 0, 5, 3, 4]


def test_tasks_wait_for_sessions_but_not_for_long() -> None:
    one = chain()
    one.put(0, 30)
    assert one.submit(0)
    assert not one.submit(0)
    one.one_pass()
    log = one.log()
    assert log.index(TASK) == 8
    assert log.count(TASK) == 1
    assert log.count(0) == 30


def test_a_task_without_sessions_runs_at_once() -> None:
    one = chain()
    assert one.submit(0)
    assert one.one_pass() == DONE
    assert one.log() == [TASK]
    assert one.submit(0)


def test_a_pass_ends_though_there_is_more() -> None:
    one = chain()
    one.put(0, 3_000)
    assert [one.one_pass() for _ in range(3)] == [MORE, MORE, DONE]
    assert len(one.log()) == 3_000


def test_input_is_read_in_every_pass() -> None:
    one = chain()
    one.receive(0, 2)
    assert [one.one_pass() for _ in range(2)] == [MORE, DONE]
    assert one.figures()[3] == 2


def test_output_is_written_at_the_end_of_a_pass() -> None:
    one = chain(message_size=1_000)
    one.put(0, 10)
    assert one.one_pass() == DONE
    assert one.figures()[:2] == (0, 1)


@pytest.mark.parametrize(("asked", "size"), [(0, 262_144), (1, 65_536), (100_000, 100_000), (1_000_000, 1_000_000)])
def test_a_transport_that_takes_nothing_holds_no_more_than_the_buffer(asked: int, size: int) -> None:
    one = chain(message_size=1_000, buffer_size=asked)
    one.accept(0, 0)
    one.put(0, 5_000)
    outcome = one.one_pass()
    while outcome == MORE:
        outcome = one.one_pass()
    assert outcome == BLOCKED
    assert size <= one.figures()[0] < size + 1_000
    assert not one.desired(0)
    assert one.seen(0) == [1, 0]
    assert one.one_pass() == BLOCKED


def test_a_write_that_frees_half_lets_the_pass_go_on() -> None:
    one = chain(message_size=1_000, buffer_size=100_000)
    one.put(0, 1_000)
    assert one.one_pass() == DONE
    assert one.seen(0) == [1]
    assert one.figures()[:2] == (0, 10)


def test_a_write_that_frees_less_than_half_ends_it() -> None:
    one = chain(message_size=1_000, buffer_size=100_000)
    one.accept(0, 49_999)
    one.put(0, 1_000)
    assert one.one_pass() == BLOCKED
    assert len(one.log()) == 100
    assert one.figures()[0] == 50_001


def test_a_blocked_connection_goes_on_when_half_is_free() -> None:
    one = chain(message_size=1_000, buffer_size=100_000)
    one.accept(0, 0)
    one.put(0, 150)
    assert one.one_pass() == BLOCKED
    one.accept(0, 50_000)
    assert one.one_pass() == BLOCKED
    one.accept(0, 1)
    assert one.one_pass() == BLOCKED  # goes on, and fills it again
    assert len(one.log()) == 150
    one.accept(0, -1)
    assert one.one_pass() == DONE
    assert one.desired(0)
    assert one.seen(0)[-1] == 1


def test_a_blocked_connection_reads_and_runs_tasks() -> None:
    one = chain(message_size=100_000, buffer_size=100_000)
    one.accept(0, 0)
    one.put(0, 2)
    assert one.one_pass() == BLOCKED
    one.receive(0, 1)
    one.submit(0)
    assert one.one_pass() == BLOCKED
    assert one.log() == [0, TASK]
    assert one.figures()[3] == 1


def test_a_closed_connection_runs_its_tasks_and_lets_go() -> None:
    many = chain(1, 2, 2)
    many.put(0, 5)
    many.submit(0)
    many.close(0)
    assert many.one_pass() == SHUT
    assert many.log() == [TASK, CLOSED]
    assert many.seen(3) == [1, 0, 2]
    many.retain(0)
    many.release(0)  # for being open: what a scheduler does after the last pass
    for consumer in range(4):
        many.forget(consumer)
    assert many.disposed() == (0, 0, 0)
    assert many.submit(0)  # too late, but nothing is lost
    many.release(0)
    assert many.log() == [TASK]
    assert many.disposed() == (4, 2, 1)


def test_the_last_consumer_that_is_forgotten_disposes_of_a_closed_connection() -> None:
    one = chain(1, 1, 1, 2)
    one.close(0)
    one.one_pass()
    one.release(0)
    one.forget(0)
    assert one.disposed() == (0, 0, 0)
    one.forget(1)
    assert one.disposed() == (1, 1, 1)


# -- the scheduler, from one thread -----------------------------------------------------------------------------------


def test_stopped_threads_come_back_at_once_and_work_waits_for_later_ones() -> None:
    one = chain()
    one.stop()
    one.put(0, 3)
    one.run()
    assert one.log() == []
    assert one.threads == 0
