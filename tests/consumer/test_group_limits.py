"""Limits of a group: never exceeded whatever happens to its processes, and what is free is used."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.limits_world import NOTICED, Process, World

from fairsched import Limit
from fairsched.consumer.group_limits.limit_message import Epoch, GroupLimit, HeldName, Message, decode, encode

FOUR = Limit(4, scope="group")
API = Limit(2, scope="group", name="api")


def fill(world: World, slot: str, count: int, processes: int | None = None) -> None:
    for one in world.processes[:processes]:
        for number in range(count):
            one.fair.put(slot, number)
        world.settle(one)


def end_all(world: World) -> None:
    for one in world.processes:
        world.end(one)


def in_hand(world: World) -> int:
    return sum(len(one.hand) for one in world.processes)


def test_one_process_has_all_permits() -> None:
    world = World(1, FOUR)
    fill(world, "acme", 10)
    world.pass_time(3)
    assert in_hand(world) == 4
    while world.handled["acme"] < 10:
        end_all(world)
        world.round()
    assert world.most["acme"] == 4


def test_processes_share_permits_and_all_get_some() -> None:
    world = World(3, FOUR)
    fill(world, "acme", 50)
    world.pass_time(3)
    assert in_hand(world) == 4
    for _ in range(400):
        end_all(world)
        world.pass_time(0.05)
    assert world.handled["acme"] == 150
    assert world.most["acme"] == 4


@pytest.mark.parametrize("permits", [1, 2, 5])
def test_more_processes_than_permits_take_turns(permits: int) -> None:
    world = World(6, Limit(permits, scope="group"))
    fill(world, "acme", 1000)
    world.pass_time(3)
    seen = set()
    for _ in range(200):
        seen.update(one.number for one in world.processes if one.hand)
        end_all(world)
        world.pass_time(0.05)
    assert seen == set(range(6)), "a process waits although the others had their turns"


def test_permits_of_a_killed_process_are_free_within_five_seconds() -> None:
    world = World(3, FOUR)
    fill(world, "acme", 50, processes=2)
    world.pass_time(4)
    lost = world.processes[1]
    assert lost.hand
    world.kill(lost)
    world.pass_time(5)
    assert len(world.processes[0].hand) == 4


def keeper_of(world: World) -> Process:
    return next(one for one in world.living() if one.member.keeper is not None)


def absent(world: World) -> int:
    return keeper_of(world).member.keeper.figures()["absent"]


@pytest.mark.parametrize("pause", [0.3, 1.0, 2.0, 2.5, 3.0, 3.5])
def test_permits_of_keepers_that_are_killed_one_after_the_other_are_free(pause: float) -> None:
    """The last keeper finds the first ones gone long after they were killed, and was told by the others when."""
    world = World(5, FOUR, lease=1800)
    fill(world, "acme", 50)
    world.pass_time(4)
    for _ in range(4):
        world.pass_time(pause)
        world.kill(keeper_of(world))
    world.pass_time(5.5)
    assert absent(world) == 0
    assert in_hand(world) == 4


def test_permits_of_a_process_that_is_killed_while_the_keeper_is_cut_off_are_free_with_the_next_keeper() -> None:
    world = World(3, FOUR, lease=1800)
    world.pass_time(4)
    keeper = keeper_of(world)
    killed, other = (one for one in world.processes if one is not keeper)
    for number in range(50):
        killed.fair.put("acme", number)
    world.pass_time(4)
    assert len(killed.hand) == 4
    for number in range(50):
        other.fair.put("acme", number)
    world.cut_off(keeper)
    world.pass_time(1)
    world.kill(killed)
    world.pass_time(NOTICED + 2.5)
    assert len(other.hand) == 4


def test_permits_of_a_process_that_is_killed_while_the_keeper_stands_still_are_free() -> None:
    world = World(3, FOUR, lease=1800)
    fill(world, "acme", 50)
    world.pass_time(4)
    keeper = keeper_of(world)
    world.freeze(keeper, 7)
    killed = next(one for one in world.processes if one is not keeper and one.hand)
    world.kill(killed)
    world.pass_time(12)
    assert absent(world) == 0
    assert in_hand(world) == 4


def test_a_keeper_that_is_killed_after_it_freed_permits_does_not_take_them_again() -> None:
    world = World(4, FOUR, lease=1800)
    fill(world, "acme", 50)
    world.pass_time(4)
    world.kill(next(one for one in world.processes if one.hand and one is not keeper_of(world)))
    while not absent(world):
        world.pass_time(0.05)
    while absent(world):
        world.pass_time(0.05)
    world.kill(keeper_of(world))
    world.pass_time(7)
    assert absent(world) == 0
    assert in_hand(world) == 4


def test_permits_of_a_process_that_is_cut_off_stay_taken_until_its_lease_ends() -> None:
    world = World(3, FOUR, lease=60)
    fill(world, "acme", 50, processes=2)
    world.pass_time(4)
    cut, other = world.processes[1], world.processes[0]
    had = len(cut.hand)
    assert had
    world.cut_off(cut)
    world.pass_time(60)
    assert len(other.hand) == 4 - had
    cut.hand.clear()  # its handlers may run for no longer
    world.pass_time(20)
    assert len(other.hand) == 4


def test_a_process_that_hears_nothing_begins_nothing_and_keeps_its_permits() -> None:
    world = World(3, FOUR, lease=60)
    fill(world, "acme", 50, processes=2)
    world.pass_time(4)
    deaf, other = world.processes[1], world.processes[0]
    had = len(deaf.hand)
    assert had
    world.deafen(deaf)
    world.pass_time(3)
    assert not deaf.queue
    world.end(deaf, 1)
    world.pass_time(20)
    assert len(deaf.hand) == had - 1
    assert len(other.hand) == 4 - had
    deaf.hand.clear()
    world.pass_time(60)
    assert len(other.hand) == 4


def test_a_process_whose_connection_only_the_broker_sees_closed_is_back_in_time() -> None:
    world = World(3, FOUR, lease=60)
    fill(world, "acme", 50, processes=2)
    world.pass_time(4)
    one = world.processes[1]
    had = len(one.hand)
    assert had
    world.half_close(one)
    world.pass_time(2.5)
    assert not one.queue
    world.connect(one)
    world.pass_time(20)
    assert len(one.hand) == had
    assert in_hand(world) == 4


def test_a_process_that_stood_still_does_not_take_itself_for_cut_off() -> None:
    world = World(2, FOUR)
    world.pass_time(4)
    one = world.processes[1]
    world.freeze(one, 5)
    for _ in range(200):
        world.pass_time(0.05)
        assert not one.member.is_cut_off(world.clock(one))


def test_a_process_that_comes_back_keeps_what_its_handlers_hold() -> None:
    world = World(2, FOUR)
    fill(world, "acme", 50)
    world.pass_time(4)
    one = world.processes[1]
    world.close(one)
    world.pass_time(1)
    world.connect(one)
    for _ in range(100):
        world.pass_time(0.05)
        for each in world.processes:
            world.end(each, 1)
    assert world.most["acme"] == 4
    assert world.handled["acme"] > 60


def test_a_new_keeper_counts_what_the_old_one_granted() -> None:
    world = World(3, FOUR)
    fill(world, "acme", 50)
    world.pass_time(4)
    world.kill(keeper_of(world))
    world.pass_time(10)
    assert in_hand(world) == 4
    assert sum(one.member.keeper is not None for one in world.processes if one.alive) == 1


@pytest.mark.parametrize("itself", [True, False])
def test_what_was_just_granted_counts_if_the_keeper_is_lost_and_the_member_cut_off(itself: bool) -> None:
    world = World(3, FOUR, lease=60)
    world.pass_time(4)
    keeper = keeper_of(world)
    cut, other = (one for one in world.processes if one is not keeper)
    cut = keeper if itself else cut
    for number in range(4):
        cut.fair.put("acme", number)
    while not cut.hand:
        world.pass_time(0.002, step=0.002)
    world.cut_off(cut)
    if not itself:
        world.kill(keeper)
    for number in range(4):
        other.fair.put("acme", number)
    had = len(cut.hand)
    world.pass_time(30)
    assert len(cut.hand) == had
    assert len(other.hand) == 4 - had, "what nobody has is not used, or what the other has is not known"


def test_a_grant_is_used_when_the_others_know_of_it() -> None:
    world = World(2, FOUR)
    world.pass_time(4)
    one = world.processes[1]
    for number in range(4):
        one.fair.put("acme", number)
    world.now += 0.5
    world.settle(one)
    while not one.member.holder.figures()["permits"]:
        world.now += 0.01
        for each in world.processes:
            world.deliver(each)
            each.member.step(True, world.clock(each))
            if each is not one or not each.member.holder.figures()["permits"]:
                world.flush(each)
    assert world.begin(one) == 0
    world.flush(one)
    world.deliver(one)
    assert world.begin(one) == 4


def test_a_keeper_that_lost_messages_begins_anew() -> None:
    world = World(2, FOUR)
    world.socket = 2
    keeper, other = world.processes
    for number in range(4):
        other.fair.put("acme", number)
    world.pass_time(4)
    assert len(other.hand) == 4
    before = keeper.member.keeper.epoch
    world.freeze(keeper, 6)
    world.end(other)  # what it returns waits for too long
    world.pass_time(6.5)
    fill(world, "acme", 4, processes=1)
    world.pass_time(5)
    assert keeper.member.keeper.epoch > before
    assert len(keeper.hand) == 4


def test_a_keeper_that_stood_still_does_not_take_a_cut_for_a_kill() -> None:
    world = World(2, FOUR, lease=60)
    keeper, other = world.processes
    fill(world, "acme", 4)
    world.pass_time(4)
    had = len(other.hand)
    assert had
    world.pass_time(0.5)
    world.freeze(keeper, NOTICED + 0.9)
    world.pass_time(0.6)  # what the other says in that time, the keeper reads late
    world.cut_off(other)
    other.notices = world.now + 40
    world.pass_time(NOTICED + 20)
    world.end(keeper)
    fill(world, "acme", 20, processes=1)
    world.pass_time(5)
    assert len(other.hand) == had
    assert len(keeper.hand) == 4 - had


def test_a_restarted_broker_does_not_free_permits() -> None:
    world = World(4, FOUR)
    fill(world, "acme", 200)
    world.pass_time(4)
    for one in world.processes:
        world.close(one)
    world.keepers.clear()
    world.pass_time(20)
    for one in world.processes:
        world.connect(one)
        world.pass_time(0.3)
    for _ in range(200):
        world.pass_time(0.05)
        for each in world.processes:
            world.end(each, 1)
    assert world.most["acme"] == 4
    assert world.handled["acme"] > 300


def test_unused_permits_and_names_are_given_back() -> None:
    world = World(2, FOUR)
    for tenant in range(200):
        fill(world, f"t{tenant}", 1)
    for _ in range(100):
        end_all(world)
        world.pass_time(0.1)
    assert world.handled.total() == 400
    assert keeper_of(world).member.keeper.figures() == {"members": 2, "names": 0, "absent": 0}
    assert all(one.member.holder.figures() == {"held": 0, "permits": 0} for one in world.processes)
    assert all(not one.fair.stats() for one in world.processes)


def test_more_names_than_a_process_may_hold_wait_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairsched.consumer.group_limits.holder.MOST_HELD", 10)
    world = World(2, FOUR)
    for tenant in range(100):
        fill(world, f"t{tenant}", 2)
    for _ in range(400):
        world.pass_time(0.05)
        assert all(one.member.holder.figures()["held"] <= 10 for one in world.processes)
        end_all(world)
    assert world.handled.total() == 400


def test_a_later_message_of_an_idle_tenant_asks_again() -> None:
    world = World(2, FOUR)
    for round_ in range(5):
        fill(world, "acme", 1)
        world.pass_time(3)
        end_all(world)
        world.pass_time(2)
        assert world.handled["acme"] == 2 * (round_ + 1)


@pytest.mark.parametrize("burst", [1, 5])
@pytest.mark.parametrize("processes", [1, 4])
def test_the_rate_is_kept_and_never_exceeded(burst: int, processes: int) -> None:
    world = World(processes, Limit(rate=10, burst=burst, scope="group"))
    fill(world, "acme", 2000)
    world.pass_time(3)
    begun = world.now
    world.pass_time(60, step=0.01)
    times = [when for when, _ in world.begun if when >= begun]
    assert 588 <= len(times) <= 600 + burst
    for first, later in zip(times, times[burst:], strict=False):
        assert later - first >= 0.1 * 0.999 - 1e-6


def test_the_rate_is_kept_while_processes_are_killed() -> None:
    world = World(4, Limit(rate=10, burst=3, scope="group"))
    fill(world, "acme", 2000)
    for number in range(6):
        world.pass_time(5, step=0.02)
        world.kill(world.processes[number])
        world.add()
        fill(world, "acme", 500)
    times = [when for when, _ in world.begun]
    for first, later in zip(times, times[3:], strict=False):
        assert later - first >= 0.1 * 0.999 - 1e-6
    assert len(times) > 100


def happen(world: World, one: Process) -> None:
    """Let a random thing happen to a process, or nothing."""
    happens = world.random.random()
    there = bool(one.queue) and not (one.cut or one.half or one.deaf) and one.frozen <= world.now
    if happens < 0.004:
        world.kill(one)
        world.add()
    elif happens < 0.01 and there:
        world.close(one)
    elif happens < 0.012 and there:
        world.cut_off(one)
    elif happens < 0.014 and there:
        world.half_close(one)
    elif happens < 0.016 and there:
        world.deafen(one)
    elif happens < 0.02 and there:
        world.freeze(one, world.random.random() * 6)
    elif happens < 0.3:
        for slot in world.random.sample(["a", "b", "c"], 2):
            one.fair.put(slot, 0)


def progress(world: World, one: Process) -> None:
    """Let a process hear, and handle, some of what there is; and connect again."""
    random_ = world.random
    if one.frozen > world.now:
        return
    if random_.random() < 0.8:
        world.deliver(one, random_.randrange(6))
        world.settle(one)
        world.begin(one, random_.randrange(4))
        world.end(one, int(random_.random() < 0.1))
    world.look(one)


def churn(world: World, seconds: float) -> None:
    """Let random things happen."""
    end = world.now + seconds
    while world.now < end:
        happen(world, world.random.choice(world.living()))
        for one in world.living():
            progress(world, one)
        world.now += world.random.random() * 0.05


def calm(world: World) -> None:
    """Let nothing happen but work, until all is handled."""
    for _ in range(1600):
        for one in world.living():
            progress(world, one)
        end_all(world)
        world.now += 0.05
        if not any(one.hand or one.fair.qsize() for one in world.living()):
            return
    raise AssertionError(f"messages wait for ever: {[one.fair.qsize() for one in world.living()]}")


@pytest.mark.parametrize("seed", range(60))
def test_no_limit_is_exceeded_whatever_happens(seed: int) -> None:
    world = World(4, Limit(2, scope="group"), seed, lease=15)
    churn(world, 40)
    assert world.handled.total() > 0
    calm(world)


@pytest.mark.parametrize("joint", [{}, {"of_name": "a", "named": API, "total": Limit(3, scope="group")}])
@pytest.mark.parametrize("seed", range(5))
def test_no_permit_is_lost_with_keepers_that_are_killed(seed: int, joint: dict[str, Any]) -> None:
    """A lease would be too long to wait for."""
    world = World(4, Limit(2, scope="group"), seed, lease=1800, **joint)
    for _ in range(10):
        end = world.now + 1 + world.random.random() * 6
        while world.now < end:
            one = world.random.choice(world.living())
            one.fair.put(world.random.choice("aab"), 0)
            for each in world.living():
                progress(world, each)
            world.now += world.random.random() * 0.05
        keepers = [one for one in world.living() if one.member.keeper is not None]
        world.kill(world.random.choice(keepers or world.living()))
        world.add()
    calm(world)
    world.pass_time(10)
    assert absent(world) == 0


JOINT = {
    "a contended name": {"limit": 2, "named": 1, "of_name": "ab"},
    "a contended total": {"limit": 1, "named": 2, "of_name": "ab", "total": 2},
    "a total alone": {"limit": 3, "total": 2},
}


def joint_world(kind: str, seed: int, processes: int = 4) -> World:
    sizes = JOINT[kind]
    limits = {name: Limit(sizes[name], scope="group") for name in ("limit", "total") if name in sizes}
    if "named" in sizes:
        limits["named"] = Limit(sizes["named"], scope="group", name="api")
    return World(processes, limits.pop("limit"), seed, lease=15, of_name=sizes.get("of_name", ""), **limits)


@pytest.mark.parametrize("kind", JOINT)
@pytest.mark.parametrize("seed", range(12))
def test_no_limit_of_several_slots_is_exceeded_whatever_happens(kind: str, seed: int) -> None:
    world = joint_world(kind, seed)
    churn(world, 40)
    assert world.handled.total() > 0
    before, last = world.handled.total(), world.now
    while any(one.hand or one.fair.qsize() for one in world.living()):
        assert world.now - last < 40, f"messages wait for ever: {[one.fair.qsize() for one in world.living()]}"
        for one in world.living():
            if one.frozen <= world.now:
                world.look(one)
        world.pass_time(0.05)
        end_all(world)
        if world.handled.total() > before:
            before, last = world.handled.total(), world.now


@pytest.mark.parametrize("kind", JOINT)
def test_processes_that_need_permits_of_several_limits_all_get_them(kind: str) -> None:
    """No process and no slot waits for ever, though each permit is wanted by all."""
    world = joint_world(kind, 1, processes=3)
    for slot in "abc":
        fill(world, slot, 2000)
    world.pass_time(3)
    seen: Counter[tuple[int, str]] = Counter()
    for _ in range(1500):
        seen.update({(one.number, slot) for one in world.processes for slot in one.hand})
        end_all(world)
        world.pass_time(0.05)
    assert {pair for pair, count in seen.items() if count >= 5} == {(n, s) for n in range(3) for s in "abc"}, seen


@pytest.mark.parametrize(("limit", "named", "total"), [(1, 1, 1), (1, 2, 2), (2, 1, 1)])
def test_a_permit_is_not_returned_when_the_last_limit_allows_what_it_is_for(limit: int, named: int, total: int) -> None:
    """It waited for longer than a slice for the limits after it, and all processes want it."""
    sizes = [Limit(limit, scope="group"), Limit(named, scope="group", name="api"), Limit(total, scope="group")]
    world = World(4, sizes[0], of_name="a", named=sizes[1], total=sizes[2])
    fill(world, "a", 500)
    world.pass_time(4)
    seen: Counter[int] = Counter()
    for _ in range(400):
        seen.update(one.number for one in world.processes if one.hand)
        end_all(world)
        world.pass_time(0.05)
    assert world.handled.total() >= 30
    assert min(seen[one.number] for one in world.processes) >= 5, seen


@pytest.mark.parametrize("processes", [1, 3])
def test_the_total_rate_is_kept_by_all_processes_and_slots(processes: int) -> None:
    world = World(processes, FOUR, total=Limit(rate=10, burst=2, scope="group"))
    for slot in "abc":
        fill(world, slot, 800)
    world.pass_time(3)
    begun = world.now
    for _ in range(3000):
        world.pass_time(0.01, step=0.01)
        end_all(world)
    times = [when for when, _ in world.begun if when >= begun]
    assert 285 <= len(times) <= 302
    for first, later in zip(times, times[2:], strict=False):
        assert later - first >= 0.1 * 0.999 - 1e-6
    assert len({slot for _, slot in world.begun}) == 3


def test_the_log_has_both_definitions_of_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    """That of the second process is larger, and does not count."""
    world = World(2, FOUR)
    world.processes[1].member.holder._limit_of = lambda _slot: GroupLimit(8, 10**8, 3)
    fill(world, "acme", 20)
    world.pass_time(5)
    [line] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert line == (
        "group test: processes define the limit of acme differently: 4 in hand or 8 in hand and 10 a second with "
        "bursts of 3; the smaller number in hand counts, and each process uses its own rate (1 such limits)"
    )


def test_a_message_says_what_it_said() -> None:
    said = Message(
        "report",
        "me",
        Epoch(3, "k"),
        2,
        "q",
        5.0,
        7,
        1.5,
        held={"a": HeldName(GroupLimit(4, 10, 1), 2, 0.5)},
        returns={"b": 1},
    )
    assert decode(encode(said)) == said


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"x", "must be JSON"),
        (b"{}", "kind must be one of"),
        (b'{"kind":"ask","sender":""}', "sender must have texts"),
        (b'{"kind":"ask","sender":"m","returns":{"a":-1}}', "returns must have whole numbers"),
        (b'{"kind":"ask","sender":"m","buckets":{"a":NaN}}', "buckets must have numbers"),
        (b'{"kind":"ask","sender":"m","wants":{"a":[1,2]}}', "wants must be a list of 3"),
        (b'{"kind":"ask","sender":"m","known":{"a":["q",1,0,1,3]}}', "held must be an object"),
    ],
)
def test_a_message_that_cannot_be_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decode(body)
