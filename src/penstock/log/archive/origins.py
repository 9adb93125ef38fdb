"""What a file of an archive says of itself in its foot, so that a lost manifest can be made anew.

Key `penstock` of the Parquet metadata, JSON: `origin` of the log, `path` in the archive, `vias`, and `claims`: for each
stretch of LSNs that was archived in one go, of one day, [first, end, rows].  All files of a stretch say the same, and
together they have so many rows: what is missing is noticed, and no gap between LSNs is taken for a loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson

from penstock.errors import LogDamaged

KEY = "penstock"


class Claim(NamedTuple):
    """LSNs [first, end) were archived in one go, and are of one day."""

    first: int
    end: int
    rows: int  # with such LSNs, in all files


class Told(NamedTuple):
    """What a file says."""

    origin: int
    path: str
    claims: tuple[Claim, ...]
    vias: dict[str, list[str]]


def put_into(made: Any, told: Told) -> None:
    """Into the foot of a file that is not closed yet.  `made`: pyarrow's ParquetWriter."""
    said = {**told._asdict(), "claims": [list(claim) for claim in told.claims]}
    made.add_key_value_metadata({KEY: orjson.dumps(said).decode()})


def told_in(metadata: Any, path: str) -> Told:
    """What a file says.  `metadata`: pyarrow's FileMetaData.  LogDamaged where it says nothing of the kind."""
    found: dict[bytes, bytes] = metadata.metadata or {}
    try:
        said = cast("dict[str, Any]", orjson.loads(found[KEY.encode()]))
        return Told(said["origin"], said["path"], tuple(Claim(*one) for one in said["claims"]), said["vias"])
    except (ValueError, KeyError, TypeError):
        raise LogDamaged(f"the archive's file {path} does not say what it has rows of") from None


def told_together(parts: Sequence[Told]) -> Told:
    """What the file says that has the rows of all of these."""
    claims = sorted({claim for part in parts for claim in part.claims})
    vias = {key: pair for part in parts for key, pair in part.vias.items()}
    return Told(parts[0].origin, "", tuple(claims), vias)


def pair_texts(vias: Mapping[int, tuple[str, str]]) -> dict[str, list[str]]:
    """As JSON has them."""
    return {str(key): list(pair) for key, pair in vias.items()}
