"""Run random sessions on RabbitMQ and on the embedded broker, and show what they answer differently.

python -m support.differences [--sessions 1000] [--seed 0] [--repeat SEED]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from support.differences.comparison import Found, Pair
from support.differences.generator import generate
from support.differences.operations import Session, printed
from support.differences.shrinker import shrink
from support.rabbitmq import Node

import fairsched

#: How many sessions are shrunk of those that differ in the same place.
SHRUNK = 3


def smallest(pair: Pair, found: Found) -> Found:
    """Return the difference with the smallest session that shows it."""
    kind = found.kind

    def shows(session: Session) -> Session | None:
        again = pair.differ(session)
        if again is None or again.kind != kind or (again := pair.believed(again.session)) is None:
            return None
        return again.session if again.kind == kind else None

    session = shrink(found.session, shows)
    return pair.believed(session) or found


def run(pair: Pair, seeds: range) -> int:
    """Run the sessions of seeds; return how many show differences that are not documented."""
    known: Counter[str] = Counter()
    kinds: Counter[tuple[object, ...]] = Counter()
    unsteady: list[int] = []
    started = time.monotonic()
    for seed in seeds:
        session = generate(seed)
        found = pair.differ(session)
        if found is None:
            continue
        if found.known:
            known[found.known.name] += 1
            continue
        again = pair.believed(session)
        if again is None:
            unsteady.append(seed)
            continue
        kinds[again.kind] += 1
        if kinds[again.kind] <= SHRUNK:
            again = smallest(pair, again)
        print(f"\nseed {seed}, {again}\n\n{again.test}", flush=True)
    spent = time.monotonic() - started
    print(f"\n{len(seeds)} sessions in {spent:.0f} s, {len(seeds) / spent:.1f} a second")
    print(f"ended by documented differences: {dict(known)}")
    print(f"differed once, and not again: {unsteady}")
    print(f"with undocumented differences: {sum(kinds.values())}")
    return sum(kinds.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="support.differences", description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first session; the others follow")
    parser.add_argument("--repeat", type=int, help="run the session of this seed alone, and print it")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.sessions)
    if options.repeat is not None:
        seeds = range(options.repeat, options.repeat + 1)
        print(printed(generate(options.repeat)))
    node = Node()
    (node.home / "plugins").write_text("[rabbitmq_consistent_hash_exchange].\n")
    with node, fairsched.Broker() as broker:
        pair = Pair(node, broker.port)
        try:
            return 1 if run(pair, seeds) else 0
        finally:
            pair.close()


if __name__ == "__main__":
    sys.exit(main())
