"""Errors across the wire: the server's error as bytes beside a Flight status, and the same class again at the client.

    extra_info  {"code": "PS101", "message": ..., "reason": ..., "text": ..., "place": ...}

The message in the status begins with the code in brackets, for clients in other languages.
"""

from __future__ import annotations

import re
from typing import cast

import orjson

from penstock.errors import ExpressionError, PenstockError, ProtocolError, Refused, Unavailable

_CODED = re.compile(r"\[(PS\d{3})\] (.*?)(?:\. Detail: |\. gRPC client debug context|\Z)", re.DOTALL)


def _tree(root: type[PenstockError]) -> dict[str, type[PenstockError]]:
    out = {root.code: root}
    for child in root.__subclasses__():
        for code, found in _tree(child).items():
            out.setdefault(code, found)
    return out


def encode_error(error: PenstockError) -> tuple[str, bytes]:
    """The text of the status and its extra bytes."""
    info: dict[str, object] = {"code": error.code, "message": str(error)}
    if isinstance(error, Refused):
        info["reason"] = error.reason
    if isinstance(error, ExpressionError):
        info |= {"text": error.text, "place": error.place}
    return f"[{error.code}] {error}", orjson.dumps(info)


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


def lost(text: str) -> Unavailable:
    """The connection failed under a call."""
    return Unavailable(text.split(". gRPC client debug context")[0].split(". Detail:")[0][:500])
