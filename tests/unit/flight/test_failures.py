"""Errors keep their class, code and particulars across the wire."""

from __future__ import annotations

import pytest

from penstock import errors
from penstock.wire.flight.failures import decode_error, encode_error


def every(root: type[errors.PenstockError]) -> list[type[errors.PenstockError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in every(child))]


@pytest.mark.parametrize("kind", every(errors.PenstockError))
def test_an_error_comes_back_as_its_own_class(kind: type[errors.PenstockError]) -> None:
    text, extra = encode_error(kind("queue 'x' said no"))
    back = decode_error(text, extra)
    assert type(back) is kind
    assert str(back) == "queue 'x' said no"


def test_the_status_text_alone_is_enough() -> None:
    back = decode_error("[PS101] no queue 'x'. Detail: Failed. gRPC client debug context: UNKNOWN", None)
    assert type(back) is errors.NotFound
    assert str(back) == "no queue 'x'"


def test_particulars_are_kept() -> None:
    back = decode_error(*encode_error(errors.ExpressionError("what?", text="/a >", place=4)))
    assert isinstance(back, errors.ExpressionError)
    assert (back.text, back.place) == ("/a >", 4)
    refused = decode_error(*encode_error(errors.Refused("no", reason="maxlen")))
    assert isinstance(refused, errors.Refused)
    assert refused.reason == "maxlen"


@pytest.mark.parametrize("character", ["x", "é", "\U0001f600", "\x00", "\n", "\ud800"])
def test_an_error_fits_into_a_header_however_long_it_is(character: str) -> None:
    """Found by made-up commands: a client of gRPC takes 8 KiB of headers, and learned nothing of a longer error."""
    error = errors.ExpressionError("no: " + character * 30_000, text="x" + character * 30_000, place=20_000)
    text, extra = encode_error(error)
    escaped = sum(1 if " " <= one <= "~" else 3 for one in text.encode(errors="replace").decode("latin-1"))
    in_base64 = (len(text.encode()) + len(extra)) * 4 / 3
    assert escaped + in_base64 < 7000
    back = decode_error(text, extra)
    assert isinstance(back, errors.ExpressionError)
    assert str(back).startswith("no: ")
    assert 0 <= back.place <= 200
    assert back.pointed()


def test_a_code_of_a_later_version_is_still_an_error_of_ours() -> None:
    assert type(decode_error("x", b'{"code": "PS999", "message": "new"}')) is errors.PenstockError


def test_what_is_not_ours_is_not_taken_for_it() -> None:
    assert decode_error("connection reset", None) is None
    assert decode_error("connection reset", b"not json") is None
