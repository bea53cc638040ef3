"""Objects of compiled classes that were never set up, or half, or twice: any exception will do, a crash will not."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping

import fairsched

#: Every class that an extension of the package defines.
CLASSES = sorted(
    {
        f"{value.__module__}:{name}"
        for module in pkgutil.walk_packages(fairsched.__path__, "fairsched.")
        if re.search(r"\._(?!_|probe)\w+$", module.name)
        for name, value in vars(importlib.import_module(module.name)).items()
        if inspect.isclass(value) and value.__module__ == module.name and not value.__flags__ & (1 << 9)
    }
)

PRELUDE = """
import faulthandler, gc, importlib, sys, threading
import fairsched.pullqueue
faulthandler.enable()

class Odd:
    def __index__(self): raise ZeroDivisionError
    def __bool__(self): raise ZeroDivisionError
    def __hash__(self): raise ZeroDivisionError

odd = [None, 0, -1, 1, 2**70, 1.5, float("nan"), "name", b"bytes", (), [], {}, {"a": 1}, print, Odd(), object()]

def call(function, *arguments, **options):
    try:
        return function(*arguments, **options)
    except BaseException as error:  # whatever it is
        return error

def use(made):
    for attribute in dir(type(made)):
        if attribute in ("__class__", "__init__", "__new__", "__init_subclass__", "__subclasshook__"):
            continue
        value = call(getattr, made, attribute)
        for something in odd[:4]:
            call(setattr, made, attribute, something)
        if callable(value) and attribute not in ("get", "get_many", "again"):
            call(value)
            for first in odd:
                call(value, first)
                for second in odd[:6]:
                    call(value, first, second)
                    call(value, first, second, 0)
        elif attribute in ("get", "get_many"):  # these wait
            call(value, 0)
            call(value, timeout=0)
            call(value, 1, timeout=0)
            call(value, block=False)
    call(repr, made), call(len, made), call(iter, made), call(lambda: "x" in made), call(lambda: made["x"])
    gc.collect()
"""


#: Calls the function `check` with each class that is named, and the arguments beside it.
LOOP = """
for name, *arguments in eval(sys.argv[1]):
    print(name, flush=True)
    module, _, own = name.partition(":")
    check(getattr(importlib.import_module(module), own), *arguments)
"""


def crashes(check: str, named: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return what is left on standard error by each class with which `check` ends the process.

    Starting Python and importing the package takes longer than most checks, so a process checks one class after the
    other, until one of them ends it.
    """
    found: dict[str, str] = {}
    left = [(name, *arguments) for name, arguments in named.items()]
    while left:
        outcome = subprocess.run(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(check) + LOOP, repr(left)],
            capture_output=True, check=False, text=True, timeout=300,
        )  # fmt: skip
        # Some objects call what they are given, such as `print`.
        begun = [line for line in outcome.stdout.splitlines() if line in named]
        if outcome.returncode == 0:
            assert begun == [name for name, *_ in left]
            break
        found[begun[-1]] = f"exit code {outcome.returncode}: {outcome.stderr[-3000:]}"
        left = left[len(begun) :]
    return found


def test_a_class_that_crashes_is_found() -> None:
    check = """
        def check(cls, way):
            if way == "crash":
                import os
                os.abort()
        """
    first, second, third, *_ = CLASSES
    assert list(crashes(check, {first: ("fine",), second: ("crash",), third: ("fine",)})) == [second]


def test_what_was_only_allocated_does_not_crash() -> None:
    check = """
        def check(cls):
            for arguments in [(), (None,), ([],), ({},)]:
                made = call(cls.__new__, cls, *arguments)
                if not isinstance(made, BaseException):
                    use(made)
                    del made
                    gc.collect()
        """
    assert crashes(check, dict.fromkeys(CLASSES, ())) == {}


#: How to set up those that are made by calling their class: arguments that are right, and some that fail half-way.
MADE = {
    "fairsched.amqp._ackledger:AckLedger": ("()", "()"),
    "fairsched.scheduling._codel:CoDel": ("()", "(0.005, 0.1, 'rfc')"),
    "fairsched.scheduling._codel:Estimator": ("(1.0,)", "(Odd(),)"),
    "fairsched.pullqueue._pullqueue:PullQueue": ("()", "('fair',)"),
    "fairsched.routing._ring:HashRing": ("({'a': 1},)", "({'a': 0},)"),
    "fairsched.pullqueue._target:Target": ("([fairsched.pullqueue.PullQueue().subscribe()],)", "([None],)"),
}


def test_what_is_set_up_twice_does_not_crash() -> None:
    check = """
        def check(cls, right, wrong):
            right = eval(right)
            made = cls(*right)
            for arguments in (right, eval(wrong), (), *[(something,) for something in odd]):
                call(made.__init__, *arguments)
            use(made)
        """
    assert crashes(check, MADE) == {}


def test_what_was_not_set_up_to_its_end_does_not_crash() -> None:
    """The constructor is called with one odd thing after the other; whatever it leaves is used."""
    check = """
        def check(cls, right, wrong):
            for arguments in (eval(wrong), (), *[(something,) for something in odd]):
                before = {id(thing) for thing in gc.get_objects()}
                call(cls, *arguments)
                for thing in gc.get_objects():
                    if id(thing) not in before and type(thing) is cls:
                        use(thing)
        """
    assert crashes(check, MADE) == {}
