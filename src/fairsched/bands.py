"""Bands: what is said of the order in which slots are served before shares count."""

from __future__ import annotations

from fairsched.errors import ConfigurationError

__all__ = ["DEFAULT_BAND", "LAST_BAND", "check_band"]

#: The band of a slot for which nothing is said. There is room before it and after it.
DEFAULT_BAND = 4

#: The band that is served last; 0 is the first.
LAST_BAND = 7


def check_band(name: object, band: object) -> int:
    """Return the band of a slot, if it is one.

    Parameters
    ----------
    name : object
        Of the slot, for the message.
    band : object
        What is said of it.

    Returns
    -------
    int
        The band.

    Raises
    ------
    ConfigurationError
        If it is not a whole number from 0 to 7.

    Notes
    -----
    O(1). Pure.
    """
    if not isinstance(band, int) or isinstance(band, bool) or not 0 <= band <= LAST_BAND:
        raise ConfigurationError(
            f"band of {name!r} must be a whole number from 0, served first, to {LAST_BAND}, got {band!r}"
        )
    return band
