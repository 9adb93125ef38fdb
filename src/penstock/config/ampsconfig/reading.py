"""An element read by its table: unknown names, repeats and bad texts become mistakes with a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from penstock.config.ampsconfig.elements import Row
from penstock.config.foreign.converted import Book, Verdict
from penstock.config.foreign.document import Element
from penstock.config.hints import known_name
from penstock.config.places import Place
from penstock.records.dataclass import dataclass

SHOWN_MAX = 60


@dataclass(slots=True)
class Fields:
    """What an element held: for each of our keys the value and where it stands."""

    values: dict[str, object]
    elements: dict[str, Element]
    of: str

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str) -> str | None:
        """The text of a key, None where it does not stand."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def place(self, key: str) -> Place:
        """Where a key stands."""
        return self.elements[key].place(self.of)


def said(element: Element) -> str:
    """How messages call an element: its tag, and its name where it has one."""
    named = next((child.text for child in element.children if child.name in {"Name", "Topic"} and child.text), "")
    return f'<{element.name}> "{named[:SHOWN_MAX]}"' if named else f"<{element.name}>"


def read_fields(book: Book, element: Element, rows: Mapping[str, Row]) -> Fields:
    """The children of an element by their table; what cannot be taken is in the book."""
    of = said(element)
    fields = Fields(dict[str, object](), dict[str, Element](), of)
    stray(book, element)
    for child in element.children:
        place = child.place(of)
        row = rows.get(child.name)
        if row is None:
            unknown(book, child, of, rows)
            continue
        if row.why:
            book.remark(Verdict.NO_MEANING, place, row.why)
            continue
        _attributes(book, child, of)
        before = fields.elements.get(row.key)
        if before is not None and not row.many:
            which = "is there twice" if before.name == child.name else f"says the same as <{before.name}>"
            book.wrong(place, f"{which} ({seen(before, child)})")
            continue
        if row.inner:
            value: object = child
        elif child.children:
            book.wrong(child.children[0].place(f"<{child.name}>"), "is unknown there: a text is expected")
            continue
        else:
            try:
                value = row.read(child.text)
            except ValueError as error:
                book.wrong(place, str(error))
                continue
        fields.elements.setdefault(row.key, child)
        if row.many:
            cast("list[object]", fields.values.setdefault(row.key, [])).append(value)
        elif value is not None:
            fields.values[row.key] = value
    return fields


def unknown(book: Book, element: Element, of: str, known: Iterable[str]) -> None:
    """An element that may not stand there, with the one that may have been meant."""
    names = list(known)
    same = [name for name in names if name.lower() == element.name.lower()]
    hint = f"; did you mean {same[0]!r}?" if same else known_name(element.name, names)
    book.wrong(element.place(of), f"is unknown there{hint}")


def seen(element: Element, by: Element) -> str:
    """Where an element stands, told beside another one."""
    return f"line {element.line}" if element.file == by.file else f"{element.file}:{element.line}"


def stray(book: Book, element: Element) -> None:
    """Text between elements: the dots with which examples leave something out are told, anything else is a mistake."""
    _attributes(book, element, "")
    text = element.text
    if not text:
        return
    if set(text.split()) == {"..."}:
        book.remark(Verdict.NO_MEANING, element.place(), "'...' stands for something left out")
    else:
        shown = text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."
        book.wrong(element.place(), f"holds the text {shown!r} between its elements")


def _attributes(book: Book, element: Element, of: str) -> None:
    for name in element.attributes:
        if not name.startswith(("xmlns", "xsi:")):
            book.remark(Verdict.NO_MEANING, element.place(of), f"its attribute {name!r} is not read")
