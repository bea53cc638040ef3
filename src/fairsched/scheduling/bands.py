"""Strict bands: slots of an earlier band are served before those of later ones, whatever the shares."""

from __future__ import annotations

from typing import TypeGuard

from fairsched.errors import ConfigurationError

__all__ = ["DEFAULT_BAND", "LAST_BAND", "check_band", "is_band"]

#: The default band, with bands before and after it.
DEFAULT_BAND = 4

#: The band that is served last; 0 is the first.
LAST_BAND = 7


def is_band(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number from 0 to 7."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LAST_BAND


def check_band(name: object, band: object) -> int:
    """Check the band of a slot.

    Parameters
    ----------
    name : object
        The slot's name, for the error message.
    band : object
        The value to check.

    Returns
    -------
    int
        The band.

    Raises
    ------
    ConfigurationError
        If the band is not a whole number from 0 to 7.

    Notes
    -----
    O(1). Pure.
    """
    if not is_band(band):
        raise ConfigurationError(
            f"band of {name!r} must be a whole number from 0 (served first) to {LAST_BAND}, got {band!r}"
        )
    return band
