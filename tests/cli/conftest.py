"""Fixtures for tests of the command line."""

from __future__ import annotations

import os

import pytest

from fairsched.config.consumer_options import PREFIX, URL_VARIABLES


@pytest.fixture(autouse=True)
def no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a developer's own broker out of the tests."""
    for name in [*os.environ]:
        if name in URL_VARIABLES or name.startswith(PREFIX):
            monkeypatch.delenv(name)
