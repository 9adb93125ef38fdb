"""NVFIX and FIX: fields `name=value` behind one another, each ended by SOH (0x01).

    nvfix   name=value SOH name=value SOH ..    any name
    fix     tag=value SOH tag=value SOH ..      a tag is a number; /35 is its field

The last separator may be missing.  Every value is a text, and a text that spells a number compares as one.  A name that
comes more than once, as in a repeating group, has a list of its values.  FIX data fields, whose length another field
says, may have SOH in them.
"""

from __future__ import annotations

from typing import cast

from penstock.expr.bodies.body_type import Fields, add
from penstock.expr.values import from_bytes, to_bytes

SOH = b"\x01"

_DATA = {
    b"90": b"91", b"93": b"89", b"95": b"96", b"212": b"213", b"348": b"349", b"350": b"351", b"352": b"353",
    b"354": b"355", b"356": b"357", b"358": b"359", b"360": b"361", b"362": b"363", b"364": b"365", b"445": b"446",
    b"618": b"619", b"621": b"622",
}  # fmt: skip
"""The tags of lengths, and of the data whose length they say (FIX 4.4, volume 6)."""

_SHOWN = 40


def _shown(part: bytes) -> str:
    return repr(part[:_SHOWN].decode(errors="replace"))


def read_nvfix(body: bytes) -> Fields:
    """The fields of an NVFIX body.  ValueError for what is no `name=value`."""
    out: Fields = {}
    for part in from_bytes(body).split("\x01"):  # whole: one call for all texts of a body
        if part:
            name, sign, value = part.partition("=")
            if not sign or not name:
                raise ValueError(f"{_shown(to_bytes(part))} is no name=value")
            found = out.get(name)
            if found is None:
                out[name] = value
            elif isinstance(found, list):
                cast("list[object]", found).append(value)
            else:
                out[name] = [found, value]
    return out


def read_fix(body: bytes) -> Fields:
    """The fields of a FIX body.  ValueError for what is no `tag=value`, and for data that is not as long as said."""
    out: Fields = {}
    at, end = 0, len(body)
    data, size = b"", 0  # the tag of the data that must follow, and its bytes
    while at < end:
        sign = body.find(b"=", at)
        tag = body[at:sign] if sign >= 0 else body[at : at + _SHOWN]
        if sign < 0 or not tag.isdigit():
            raise ValueError(f"{_shown(tag)} is no tag=value")
        stop = body.find(SOH, sign)
        stop = end if stop < 0 else stop
        if data:
            if tag != data:
                raise ValueError(f"tag {data.decode()} does not follow its length")
            stop = sign + 1 + size
            if stop > end or body[stop : stop + 1] not in (SOH, b""):
                raise ValueError(f"the data of tag {data.decode()} is not {size} bytes long")
        value = body[sign + 1 : stop]
        data = b"" if data else _DATA.get(tag, b"")
        if data:
            if not value.isdigit() or len(value) > 9:
                raise ValueError(f"{_shown(value)} is no length of tag {data.decode()}")
            size = int(value)
        add(out, from_bytes(tag), from_bytes(value))
        at = stop + 1
    if data:
        raise ValueError(f"tag {data.decode()} does not follow its length")
    return out


def write_nvfix(fields: Fields) -> bytes:
    """The inverse of `read_nvfix`.  ValueError for a value that is no text, number or truth."""
    return b"".join(_written(name, value, SOH) for name, each in fields.items() for value in _values(each))


def write_fix(fields: Fields) -> bytes:
    """The inverse of `read_fix`."""
    data = {tag.decode() for tag in _DATA.values()}
    for name in fields:
        if not name.isdigit() or not name.isascii():
            raise ValueError(f"{name[:_SHOWN]!r} is no tag")
    return b"".join(
        _written(name, value, b"" if name in data else SOH) for name, each in fields.items() for value in _values(each)
    )


def _values(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _written(name: str, value: object, forbidden: bytes) -> bytes:
    if isinstance(value, bool):
        value = "true" if value else "false"
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"the value of {name[:_SHOWN]!r} is no text and no number")
    key, text = to_bytes(name), b"" if value is None else to_bytes(str(value))
    if not key or SOH in key or b"=" in key or (forbidden and forbidden in text):
        raise ValueError(f"{name[:_SHOWN]!r} or its value has a separator in it")
    return key + b"=" + text + SOH
