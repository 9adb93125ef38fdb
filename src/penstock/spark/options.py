"""The options of `format("penstock")`: names, types, and which exclude each other.

Spark hands options over as text under lower-case names.  Every error names the option as the documentation writes it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches

from penstock.client.urls import with_trust
from penstock.errors import InvalidArgument
from penstock.spark.remote import Where
from penstock.units import parse_duration, parse_size

COMMON = (
    "url", "user", "password", "ca", "cert", "key", "verify", "vhost", "topic", "exchange", "queue", "path", "patience",
)  # fmt: skip
FROM_SPARK = ("checkpointLocation", "queryName", "serialization.format", "__partition_columns", "outputMode")
"""What Spark puts among the options by itself."""

OURS = frozenset(
    {"path", "vhost", "backfillUntil", "backfillMaxRows", "backfillOnly", "poisonBlame", "beside", "pipeline"}
)
"""What `load(name)` and pipelines put there, which nobody else is told of."""


class Taker:
    """Options by name.  Unknown ones are refused with the nearest known name."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): str(value) for name, value in given.items()}
        names = {name.lower(): name for name in (*known, *FROM_SPARK)}
        told = {name.lower(): name for name in known if name not in OURS}
        for name in self._given:
            if name not in names:
                near = get_close_matches(name, told, n=1, cutoff=0.6)
                hint = f"; did you mean {told[near[0]]}?" if near else f"; known: {', '.join(sorted(told.values()))}"
                raise InvalidArgument(f"unknown option {name!r}{hint}")

    def text(self, name: str) -> str | None:
        """Its text, or None when absent or empty."""
        return self._given.get(name.lower()) or None

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidArgument(f"option {name} is {value!r}, not true or false")
        return value.lower() == "true"

    def count(self, name: str, low: int = 0) -> int | None:
        """A whole number of at least `low`."""
        value = self.text(name)
        if value is None:
            return None
        if not value.isascii() or not value.isdigit() or int(value) < low:
            raise InvalidArgument(f"option {name} is {value!r}, not a whole number of at least {low}")
        return int(value)

    def size(self, name: str) -> int | None:
        """Bytes: a number, or text with a unit."""
        value = self.text(name)
        if value is None or value.isdigit():
            return None if value is None else int(value)
        try:
            return parse_size(value)
        except ValueError as error:
            raise InvalidArgument(f"option {name}: {error}") from None

    def either(self, *names: str) -> str | None:
        """The one of several names that is given."""
        given = [name for name in names if self.text(name) is not None]
        if len(given) > 1:
            raise InvalidArgument(f"options {given[0]} and {given[1]} say the same thing: give one of them")
        return self.text(given[0]) if given else None

    def where(self, patience_s: float) -> Where:
        """The server; `patience_s` where the option does not say."""
        url = self.text("url") or os.environ.get("PENSTOCK_URL") or "penstock://localhost"
        vhost = self.text("vhost")
        if vhost is not None:
            raise InvalidArgument("option vhost: the vhost is part of the url, as in penstock://localhost/vhost")
        patience = self.text("patience")
        try:
            seconds = patience_s if patience is None else parse_duration(patience) / 1e6
        except ValueError as error:
            raise InvalidArgument(f"option patience: {error}") from None
        files = {name: self.text(name) for name in ("ca", "cert", "key")}
        verify = None if self.text("verify") is None else "on" if self.flag("verify") else "off"
        url = with_trust(url, **files, verify=verify)
        return Where(url, self.text("user"), self.text("password"), seconds)
