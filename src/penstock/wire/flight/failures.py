"""Errors across the wire: the server's error as bytes beside a Flight status, and the same class again at the client.

    extra_info  {"code": "PS101", "message": ..., "reason": ..., "text": ..., "place": ...}

The message in the status begins with the code in brackets, for clients in other languages.
"""

from __future__ import annotations

import re
from typing import cast

import orjson

from penstock.errors import AccessRefused, ExpressionError, PenstockError, ProtocolError, Refused, Unavailable

TOLD_BYTES = 800
"""Bytes of a text in an error at most.  gRPC's clients take 8 KiB of headers, and a status has its message in three of
them, escaped; of a longer one a client learns nothing."""

AROUND = 200
"""Characters of an expression that are sent on each side of the place of its error."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_CODED = re.compile(r"\[(PS\d{3})\] (.*?)(?:\. Detail: |\. gRPC client debug context|\Z)", re.DOTALL)


def _tree(root: type[PenstockError]) -> dict[str, type[PenstockError]]:
    out = {root.code: root}
    for child in root.__subclasses__():
        for code, found in _tree(child).items():
            out.setdefault(code, found)
    return out


def encode_error(error: PenstockError) -> tuple[str, bytes]:
    """The text of the status and its extra bytes, cut where a client would not take them."""
    message = _cut(str(error))
    info: dict[str, object] = {"code": error.code, "message": message}
    if isinstance(error, Refused):
        info["reason"] = _cut(error.reason)
    if isinstance(error, ExpressionError):
        text, start = error.text, 0
        if len(text.encode(errors="replace")) > TOLD_BYTES:
            start = max(0, error.place - AROUND)
            text = _cut(text[start : error.place + AROUND])
        info |= {"text": text, "place": error.place - start}
    return f"[{error.code}] {message}", orjson.dumps(info)


def status_of(error: PenstockError) -> str:
    """The word for an error's Flight status."""
    if isinstance(error, Unavailable):
        return "unavailable"
    return "unauthorized" if isinstance(error, AccessRefused) else "server"


def _cut(text: str) -> str:
    """A text that fits into a header, without control characters, which JSON writes six times as long."""
    data = _CONTROL.sub("?", text).encode(errors="replace")
    return data.decode() if len(data) <= TOLD_BYTES else data[: TOLD_BYTES - 3].decode(errors="ignore") + "..."


PASSED = "retention"
"""The reason of a NotFound whose rows were there and are gone, by which a reader that may do without knows them."""


def decode_error(text: str, extra: bytes | None) -> PenstockError | None:
    """The server's error again, or None when what came is none of ours."""
    info: dict[str, object] = {}
    if extra:
        try:
            value: object = orjson.loads(extra)
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, dict):
            info = cast("dict[str, object]", value)
    if "code" not in info:
        match = _CODED.search(text)
        if match is None:
            return None
        info = {"code": match[1], "message": match[2]}
    return error_from(info)


def error_from(info: dict[str, object]) -> PenstockError:
    """An error of the class its code names, or the nearest one known."""
    message = str(info.get("message", ""))
    kind = _tree(PenstockError).get(str(info.get("code")), PenstockError)
    if issubclass(kind, ExpressionError):
        place = info.get("place")
        return kind(message, text=str(info.get("text", "")), place=place if isinstance(place, int) else 0)
    if issubclass(kind, Refused):
        return kind(message, reason=str(info.get("reason", "")))
    if issubclass(kind, ProtocolError):
        return kind(message)
    return kind(message)


AWAY = "no server answers: "

UNREACHED = "ailed to connect to"
"""What gRPC says, at the beginning of a sentence or in one, where no connection came about."""


def lost(text: str) -> Unavailable:
    """The connection failed under a call."""
    told = text.split(". gRPC client debug context")[0].split(". Detail:")[0]
    before, _, last = told.rpartition("last error: ")
    why = (last.partition(": ")[2] if before else told)[:500]
    return Unavailable(f"{AWAY}{why}" if UNREACHED in text else why)
