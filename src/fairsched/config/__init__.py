"""Configuration of a worker: from a file, the environment and arguments."""

from __future__ import annotations

from fairsched.config.settings import PREFIX, URL_VARIABLES, Settings

__all__ = ["PREFIX", "URL_VARIABLES", "Settings"]
