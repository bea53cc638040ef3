"""Fair scheduling of Python objects: `_fairqueue`, `_waitingroom` (waiting threads), `_codel`, and their arguments."""

from __future__ import annotations
