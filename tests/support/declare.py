"""The types of the fixtures that declare queues."""

from __future__ import annotations

from collections.abc import Callable

#: Declares a queue that no other test uses, and returns its name.
Declare = Callable[..., str]
#: Declares several such queues, and returns their names.
DeclareAll = Callable[..., list[str]]
