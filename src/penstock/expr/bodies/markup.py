"""XML: an element is an object, an attribute `@name`, text beside these `#text`, and an element of text alone a text.

    <order id="7"><line>a</line><line>b</line></order>      /order/@id = '7', /order/line[1] = 'b'

Names come without their namespaces.  Elements of one name are a list.  Text that is nothing but blanks between elements
does not count.  A document type, and with it every entity beyond the five of XML itself, is refused: nothing is
expanded and nothing is fetched.  The parser spells each name with its namespace, which a few letters stand for in the
body: a body of which that makes too much is refused as it is read.  Python keeps each name of an encoding that it looks
for, so it looks for those alone that there are.  XML has no deltas: which of its elements a list is cannot be told
from one of them.
"""

from __future__ import annotations

import encodings
import re
from encodings.aliases import aliases
from pkgutil import iter_modules
from typing import Any, cast
from xml.etree.ElementTree import ParseError

from defusedxml.ElementTree import DefusedXMLParser

from penstock.expr.bodies.body_type import Words, add, refusal
from penstock.records.message_bodies import DEPTH

SPELLED_LEAST = 1 << 20
SPELLED_EACH = 32
"""Letters of names with their namespaces that a body may have, and for each of its bytes, if that is more."""

_ENCODINGS = {*aliases, *(module.name for module in iter_modules(encodings.__path__))}
"""Those that there are, as Python spells them."""


_UNKNOWN = "its encoding is unknown"

_WORDS: Words = {
    re.compile("LookupError"): _UNKNOWN,
    re.compile("UnicodeDecodeError|.*codec failed"): "it is not in the encoding that it says",
    re.compile("DTDForbidden|EntitiesForbidden|ExternalReferenceForbidden"): "it has a document type",
}


def read_xml(body: bytes) -> dict[str, object]:
    """The root element under its name.  ValueError for what is no well-formed document."""
    builder = _Builder(max(SPELLED_LEAST, SPELLED_EACH * len(body)))
    parser: Any = DefusedXMLParser(target=cast("Any", builder), forbid_dtd=True)
    parser.parser.XmlDeclHandler = _judge_declaration
    try:
        parser.feed(body)
        parser.close()
    except (ParseError, ValueError, LookupError) as error:
        raise refusal(error, _WORDS) from None
    return builder.whole


def _judge_declaration(version: str, encoding: str | None, standalone: int) -> None:
    """The encoding that a body says it has, before anybody looks for it."""
    if encoding is not None and encoding.lower().replace("-", "_") not in _ENCODINGS:
        raise ValueError(_UNKNOWN)


class _Builder:
    """Takes what the parser finds."""

    def __init__(self, spelled_most: int) -> None:
        self._spelled_left = spelled_most
        self.whole: dict[str, object] = {}
        self._open: list[tuple[str, dict[str, object], list[str]]] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if len(self._open) >= DEPTH:
            raise ValueError(f"it is nested more than {DEPTH} levels deep")
        self._spelled_left -= len(tag) + sum(map(len, attributes))
        if self._spelled_left < 0:
            raise ValueError("its names, with their namespaces, are too long for its size")
        self._open.append((_local(tag), {f"@{_local(name)}": text for name, text in attributes.items()}, []))

    def data(self, text: str) -> None:
        self._open[-1][2].append(text)

    def end(self, tag: str) -> None:
        name, fields, texts = self._open.pop()
        text = "".join(texts)
        value: object = text
        if fields:
            if text.strip():
                fields["#text"] = text
            value = fields
        add(self._open[-1][1] if self._open else self.whole, name, value)

    def close(self) -> None:
        """The parser's word that the document ends."""


def _local(name: str) -> str:
    return name.rpartition("}")[2]
