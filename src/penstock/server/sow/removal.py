"""What a `sow_delete` removes: records that a filter, keys, or the data of a message name, in steps."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.sow.holding import Sow, parse_number
from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass

KEYS_MOST = 100_000
"""Keys of one command."""

STEP = 8192
"""Records that are removed in one step; then others have their turn."""


@dataclass(frozen=True, slots=True)
class Removal:
    filter: str | None = None
    keys: tuple[str, ...] | None = None
    data: bytes | None = None  # a message whose key it is

    def __post_init__(self) -> None:
        if (self.filter is not None) + (self.keys is not None) + (self.data is not None) != 1:
            raise InvalidArgument("sow_delete takes a filter, keys, or the data of a message, and one of them")
        if self.keys is not None and len(self.keys) > KEYS_MOST:
            raise InvalidArgument(f"sow_delete names {len(self.keys)} keys, {KEYS_MOST} are allowed")


def numbers_of(sow: Sow, removal: Removal) -> list[int]:
    """The keys that are named or given with data.  Raises InvalidArgument for what is no key of this topic."""
    if removal.data is not None:
        if sow.rule.given:
            raise InvalidArgument(f"topic '{sow.name}' has its keys from its publishers: name the keys, not data")
        return [_number(sow, sow.rule.of_body(removal.data))]
    return [number_of_key(sow, key) for key in removal.keys or ()]


def number_of_key(sow: Sow, key: str) -> int:
    """The number of a key as people see it.  Raises InvalidArgument."""
    if sow.rule.given:
        return _number(sow, sow.rule.of_text(key))
    number = parse_number(key)
    if number is None:
        raise InvalidArgument(f"{key[:60]!r} is no key of topic '{sow.name}': its keys are unsigned 64-bit decimals")
    return number


def _number(sow: Sow, found: int | str) -> int:
    if isinstance(found, str):
        raise InvalidArgument(f"topic '{sow.name}': {found}")
    return found


def steps(numbers: Sequence[int], lsns: Sequence[int]) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Keys and their records in portions."""
    return [(numbers[at : at + STEP], lsns[at : at + STEP]) for at in range(0, len(numbers), STEP)]
