"""Output of the commands: tables in the terminal, pictures and pages."""

from __future__ import annotations
