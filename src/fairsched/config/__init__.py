"""Configuration of a worker: one table of options (`options`), and settings from file, environment and arguments."""

from __future__ import annotations

from fairsched.config.options import OPTIONS, PREFIX, URL_VARIABLES, ConsumerOptions, Option, default_url
from fairsched.config.settings import Settings

__all__ = ["OPTIONS", "PREFIX", "URL_VARIABLES", "ConsumerOptions", "Option", "Settings", "default_url"]
