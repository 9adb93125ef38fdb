"""Texts in a header are texts: doors refuse what is none, and what was stored before they did stops nobody."""

from __future__ import annotations

import pytest

from penstock.errors import ProtocolError
from penstock.records.properties import ASKS, HeaderClasses, decode, peek, plain_mode, plain_mode_of_all

TEXTS = (0x8000, 0x4000, 0x0400, 0x0200, 0x0100, 0x0080, 0x0020, 0x0010, 0x0008, 0x0004)
"""Flags of the properties that are texts."""


@pytest.mark.parametrize("flag", TEXTS, ids=hex)
def test_a_text_that_is_none_is_refused_whichever_property_it_is(flag: int) -> None:
    """Alone, and among many like it: what was stored once is decoded again and again."""
    broken = flag.to_bytes(2, "big") + b"\x01\xff"
    with pytest.raises(ProtocolError, match="not UTF-8"):
        peek(broken)
    assert plain_mode(broken) == -1
    assert plain_mode_of_all([broken] * 200) == -1
    assert HeaderClasses().mode(broken) == ASKS
    good = flag.to_bytes(2, "big") + b"\x02\xc3\xa4"
    assert peek(good).delivery_mode == 0


def test_a_stored_text_that_is_none_stops_nobody_who_reads_it() -> None:
    assert decode(b"\x80\x00\x03a\xffb").content_type == "a\ufffdb"
