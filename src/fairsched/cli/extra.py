"""The libraries that the command line needs besides a plain installation of fairsched."""

from __future__ import annotations

#: Packages of the extra ``cli``.
EXTRA = frozenset({"click", "rich", "matplotlib"})

REMEDY = "the command line needs {}: pip install 'fairsched[cli]'"
