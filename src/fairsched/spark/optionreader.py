"""Reads the options that Spark passes, one by one, and checks them; errors name the option."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from fairsched.amqp.fieldtables import write_table
from fairsched.amqp.urls import check_urls
from fairsched.config.durations import parse_duration
from fairsched.config.unique_json import parse_json
from fairsched.errors import ConfigurationError
from fairsched.scheduling._arrays import AMOUNT_MAX
from fairsched.spark.broker import Broker

#: Options of Spark itself, which it passes to every source.
FOREIGN = frozenset({"checkpointlocation"})

#: Spark 4.3 passes the options of a table when it asks a Python source for the columns, but not when the table is used.
_NO_TABLES = (
    "Spark does not pass the options of a table created with CREATE TABLE … USING rabbitmq when the table is used: use "
    "CREATE TEMPORARY VIEW … USING rabbitmq OPTIONS (…), or the readers and writers of DataFrames"
)

_MOST = 2**31 - 1
#: A number without a unit.
_BARE = re.compile(r"[-+.\d_eE\s]+")
T = TypeVar("T")


def as_json(text: str, name: str, shape: str) -> Any:
    """Parse the JSON of an option; `shape` describes the allowed form."""
    try:
        return parse_json(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"option {name}: {error}") from None
    except ValueError:
        raise ConfigurationError(f"option {name} must be {shape}, got {text!r}") from None


def _is_weight(value: object) -> bool:
    return type(value) is int and 0 < value <= AMOUNT_MAX


def _is_argument(value: object) -> bool:
    return isinstance(value, str | bool | int) and not (type(value) is int and not -(2**63) <= value < 2**63)


class OptionReader:
    """Removes options from a case-insensitive mapping, to find unknown ones at the end."""

    def __init__(self, options: Mapping[str, str]) -> None:
        # A copy of Spark's mapping is no longer case-insensitive, so the keys are lowered here.
        self._left = {str(key).lower(): value for key, value in options.items()}
        self._given = frozenset(self._left)
        self.known: list[str] = []

    def given(self, *names: str) -> list[str]:
        """Return the options among `names` that the user gave."""
        return [name for name in names if name.lower() in self._given]

    def peek(self, name: str) -> str | None:
        """Return a text that is read later; None if it is not given."""
        return self._left.get(name.lower())

    def text(self, name: str, default: T) -> str | T:
        """Read a text."""
        self.known.append(name)
        return self._left.pop(name.lower(), default)

    def number(self, name: str, default: int, least: int = 1, most: int = _MOST) -> int:
        """Read an integer between two bounds, inclusive."""
        text = self.text(name, None)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ConfigurationError(f"option {name} must be an integer from {least} to {most}, got {text!r}")
        return value

    def seconds(self, name: str, default: str) -> float:
        """Read a duration: a number with a unit."""
        text = str(self.text(name, default))
        try:
            if not _BARE.fullmatch(text):
                return parse_duration(text)
        except ValueError:
            pass
        raise ConfigurationError(
            f"option {name} must be a number with a unit (ns, us, ms, s, m, h), such as 500ms, 2s or 5m, got {text!r}"
        )

    def heartbeat(self) -> int:
        """Read the interval of heartbeats, which AMQP counts in whole seconds; 0: none."""
        seconds = self.seconds("heartbeat", "60s")
        if seconds > 3600 or seconds % 1:
            raise ConfigurationError(f"option heartbeat must be whole seconds from 0s to 1h, got {seconds:g}s")
        return int(seconds)

    def flag(self, name: str, default: bool) -> bool:
        """Read true or false."""
        text = str(self.text(name, default)).lower()
        if text not in ("true", "false"):
            raise ConfigurationError(f"option {name} must be true or false, got {text!r}")
        return text == "true"

    def choice(self, name: str, *allowed: str) -> str:
        """Read one of several words, in any case; the first one is the default."""
        text = str(self.text(name, allowed[0])).lower()
        if text not in allowed:
            raise ConfigurationError(f"option {name} must be {' or '.join(allowed)}, got {text!r}")
        return text

    def weights(self, name: str, *, listed: bool = True) -> dict[str, int]:
        """Read ``{"name": weight}``, or a comma-separated list of names with weight 1."""
        text = self.text(name, "").strip()
        shape = 'a JSON object of positive integers, such as {"gold": 10, "free": 1}'
        if listed and not text.startswith("{"):
            return {one.strip(): 1 for one in text.split(",") if one.strip()}
        found = as_json(text or "{}", name, shape)
        if not isinstance(found, dict) or not all(name and _is_weight(value) for name, value in found.items()):
            raise ConfigurationError(f"option {name} must be {shape}, got {text!r}")
        return found

    def broker(self) -> Broker:
        """Read the options of the connection: URL, login, heartbeat, timeout and retries."""
        text = self.text("url", "")
        if not text:
            self.refuse_alike("url")
            # A managed table has a path, which Spark passes.
            unused = f". {_NO_TABLES}" if self._given <= {"path"} else ""
            raise ConfigurationError(
                f"option url is missing: give an AMQP URL, such as amqp://user:password@host/vhost{unused}"
            )
        return Broker(
            self._with_login(check_urls([one.strip() for one in text.split(",")])),
            self.heartbeat(),
            self.seconds("connectTimeout", "10s"),
            self.number("connectRetries", 3, 0),
        )

    def _with_login(self, urls: tuple[str, ...]) -> tuple[str, ...]:
        """Read username and password, and add them to the URLs; Spark redacts the option password."""
        user, password = self.text("username", None), self.text("password", None)
        if user is None and password is None:
            return urls
        if not user or password is None:
            given, missing = ("password", "username") if not user else ("username", "password")
            raise ConfigurationError(f"option {given} needs option {missing}; give both, or both in url")
        for url in urls:
            if "@" in re.split("[/?#]", url.partition("//")[2])[0]:
                raise ConfigurationError(
                    "the user is given in option url and in options username and password; give it once"
                )
        login = f"//{quote(user, safe='')}:{quote(password, safe='')}@"
        return tuple(url.replace("//", login, 1) for url in urls)

    def arguments(self, name: str) -> dict[str, Any]:
        """Read a JSON object of strings, integers and booleans, for an AMQP table."""
        text = self.text(name, "{}")
        shape = 'a JSON object of strings, 64-bit integers, true and false, such as {"x-priority": 10}'
        found = as_json(text, name, shape)
        if not isinstance(found, dict) or not all(map(_is_argument, found.values())):
            raise ConfigurationError(f"option {name} must be {shape}, got {text!r}")
        try:
            write_table(found)
        except ValueError as error:
            raise ConfigurationError(f"option {name}: {error}") from None
        return found

    def refuse_unknown(self) -> None:
        """Raise ConfigurationError if an option was not read."""
        left = sorted(set(self._left) - FOREIGN)
        if any(name.startswith("option.") for name in left):
            raise ConfigurationError(_NO_TABLES)
        if left:
            meant = {name.lower(): name for name in self.known}
            found = [f"{name}{self._guess(name, meant)}" for name in left]
            raise ConfigurationError(f"no such option: {', '.join(found)}; there are {', '.join(sorted(self.known))}")

    def refuse_alike(self, *names: str) -> None:
        """Raise ConfigurationError if an option that was not read is a misspelling of one of these."""
        meant = {name.lower(): name for name in names}
        for given in sorted(self._left):
            # Spark puts "option." in front of those of tables.
            if not given.startswith("option.") and (guess := self._guess(given, meant)):
                raise ConfigurationError(f"no such option: {given}{guess}")

    @staticmethod
    def _guess(given: str, known: Mapping[str, str]) -> str:
        """Return a question whether a known option was meant; empty if none is alike."""
        alike = difflib.get_close_matches(given, known, 1)
        return f" (did you mean {known[alike[0]]}?)" if alike else ""
