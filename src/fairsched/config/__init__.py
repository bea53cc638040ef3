"""Configuration of a worker: `consumer_options` has a table of them, `settings` reads file, environment, arguments."""

from __future__ import annotations
