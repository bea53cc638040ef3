"""The commands of ``fairsched``: one file each, named as the command."""

from __future__ import annotations
