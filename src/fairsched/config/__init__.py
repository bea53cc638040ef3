"""Configuration of a worker: `consumer_options` has one table of them, `settings` reads file, environment and arguments."""

from __future__ import annotations
