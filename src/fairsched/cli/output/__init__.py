"""What the commands print and draw: tables in the terminal, pictures and pages."""

from __future__ import annotations
