"""Options by name, as Spark hands them over: text under lower-case names, which errors have as the documentation does.

Which there are says who asks; what excludes what is not known here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from penstock.client.urls import with_trust
from penstock.errors import InvalidArgument, told_as
from penstock.records.tokens import login_of
from penstock.spark.remote import Where
from penstock.units import parse_duration, parse_size
from penstock.wire.fields import LSN_MAX, NAME_LIMIT, nearest

COMMON = (
    "url", "user", "password", "token", "ca", "cert", "key", "verify", "vhost", "topic", "exchange", "queue", "path",
    "patience",
)  # fmt: skip
FROM_SPARK = ("checkpointLocation", "queryName", "serialization.format", "__partition_columns", "outputMode")
"""What Spark puts among the options by itself."""

OURS = frozenset(
    {"path", "vhost", "backfillUntil", "backfillMaxRows", "backfillOnly", "poisonBlame", "beside", "pipeline"}
)
"""What `load(name)` and pipelines put there, which nobody else is told of."""


SHOWN = 60
"""Letters of a value that an error has."""

_WHOLE, _DIGITS = re.compile("[0-9]+"), 19


def whole(text: str) -> int | None:
    """A number, of which digits beyond those of 64 bits say no more than that it is too large; None for other text."""
    return int(text[: _DIGITS + 1]) if _WHOLE.fullmatch(text) else None


def _bounded(name: str, value: str, number: int, most: int = LSN_MAX) -> int:
    """The number of an option, which the server takes too."""
    if number > most:
        raise InvalidArgument(f"option {name} is {value[:SHOWN]}, and at most {most} is allowed")
    return number


class Taker:
    """Options by name.  Unknown ones are refused with the nearest known name."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): str(value) for name, value in given.items()}
        names = {name.lower(): name for name in (*known, *FROM_SPARK)}
        told = [name for name in known if name not in OURS]
        for name in self._given:
            if name == "provider":
                raise InvalidArgument(
                    "CREATE TABLE ... USING penstock: Spark keeps no options of such a table, so nothing could be read "
                    "of it; use CREATE TEMPORARY VIEW ... USING penstock OPTIONS (...)"
                )
            if name not in names:
                raise InvalidArgument(f"unknown option {name!r}{nearest(name, told)}")

    def text(self, name: str) -> str | None:
        """Its text, or None when absent or empty."""
        return self._given.get(name.lower()) or None

    def name(self, name: str) -> str | None:
        """The name of something on the server.  InvalidArgument for one that is longer than names are."""
        value = self.text(name)
        if value is not None and (size := len(value.encode())) > NAME_LIMIT:
            raise InvalidArgument(f"option {name} has {size} bytes; at most {NAME_LIMIT} are allowed")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """An option that is `true` or `false`, in any case.  InvalidArgument for other text."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidArgument(f"option {name} is {value[:SHOWN]!r}, not true or false")
        return value.lower() == "true"

    def count(self, name: str, low: int = 0, most: int = LSN_MAX) -> int | None:
        """A whole number from `low` to `most`."""
        value = self.text(name)
        if value is None:
            return None
        if (number := whole(value)) is None or number < low:
            raise InvalidArgument(f"option {name} is {value[:SHOWN]!r}, not a whole number of at least {low}")
        return _bounded(name, value, number, most)

    def size(self, name: str) -> int | None:
        """Bytes: a number, or text with a unit."""
        value = self.text(name)
        if value is None:
            return None
        with told_as(InvalidArgument, f"option {name}: "):
            number = parse_size(value) if (number := whole(value)) is None else number
        if not number:
            raise InvalidArgument(f"option {name} is {value[:SHOWN]!r}, and at least 1 byte is needed")
        return _bounded(name, value, number)

    def word(self, name: str, *words: str) -> str | None:
        """An option that is one of these words.  InvalidArgument names them."""
        value = self.text(name)
        if value is not None and value not in words:
            raise InvalidArgument(f"option {name} is {value[:SHOWN]!r}, not {', '.join(words[:-1])} or {words[-1]}")
        return value

    def either(self, *names: str) -> str | None:
        """The name of the one of several that is given."""
        given = [name for name in names if self.text(name) is not None]
        if len(given) > 1:
            raise InvalidArgument(f"options {given[0]} and {given[1]} say the same thing: give one of them")
        return given[0] if given else None

    def where(self, patience_s: float) -> Where:
        """The server; `patience_s` where the option does not say."""
        url = self.text("url") or os.environ.get("PENSTOCK_URL") or "penstock://localhost"
        vhost = self.text("vhost")
        if vhost is not None:
            raise InvalidArgument("option vhost: the vhost is part of the url, as in penstock://localhost/vhost")
        patience = self.text("patience")
        with told_as(InvalidArgument, "option patience: "):
            seconds = patience_s if patience is None else parse_duration(patience) / 1e6
        files = {name: self.text(name) for name in ("ca", "cert", "key")}
        verify = None if self.text("verify") is None else "on" if self.flag("verify") else "off"
        url = with_trust(url, **files, verify=verify)
        return Where(url, *self._login(), seconds, ", option patience")

    def _login(self) -> tuple[str | None, str | None]:
        """User and password, where options say them."""
        user, password, token = self.text("user"), self.text("password"), self.text("token")
        if token is None:
            return user, password
        if user is not None or password is not None:
            raise InvalidArgument("option token stands for user and password: give one or the others")
        if (login := login_of(token)) is None:
            raise InvalidArgument("option token is none: it is one word, penstock_..., as the server gives it")
        return login
