"""Lanes at the broker: which lane a message goes to, and how lanes are declared and announced.

Read in this order: `fairsched.config.lanes` (the names), `_placement` (the lane of each message, and which tenants are
hot).
"""

from __future__ import annotations

from fairsched.lanes._placement import Placement

__all__ = ["Placement"]
