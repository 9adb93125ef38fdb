"""`<MessageTypes>` of AMPS: names for types of bodies, of which those with schemas bring these from files.

    <MessageType>
      <Name>orders</Name> <Module>protobuf</Module>
      <ProtoPath>proto</ProtoPath> <ProtoFile>shop.proto</ProtoFile> <Type>shop.Order</Type>
    </MessageType>

A name stands for its type in every `<MessageType>` of the file.  Of protobuf what is read is what `protoc` has made of
the file, `shop.pb` beside it; of Avro (`<Module>avro</Module>`, which AMPS has not) `<SchemaFile>`.  Types that need no
schema are there without being declared: a name for one is that type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.config.foreign.converted import Book, Element
from penstock.config.known_names import known_name
from penstock.config.queue_values import of_files
from penstock.records.body_schemas import AVRO, PROTOBUF, SCHEMA_TYPES
from penstock.records.message_types import MESSAGE_TYPES

_PARTS: Mapping[str, tuple[str, ...]] = {
    PROTOBUF: ("Name", "Module", "ProtoPath", "ProtoFile", "Type"),
    AVRO: ("Name", "Module", "SchemaFile"),
}


def with_schemas(section: Element) -> bool:
    """Whether a section declares types that are not there without it."""
    return any(_module(element) in SCHEMA_TYPES for element in section.children)


def name_types(book: Book, root: Element, path: Path) -> None:
    """Put the types themselves wherever the file names those that it declares.  Mistakes are told in the book."""
    known: dict[str, str] = {}
    for element in (one for section in root.all("MessageTypes") for one in section.all("MessageType")):
        parts = {child.name: child.text for child in element.children}
        name, module = parts.get("Name", ""), _module(element)
        if not name:
            book.wrong(element.place("<MessageTypes>"), "has no <Name>")
        elif module in SCHEMA_TYPES:
            kind = _kind(book, element, module, parts, path.parent)
            if kind is not None:
                known[name] = kind
        elif module in MESSAGE_TYPES and name not in MESSAGE_TYPES:
            known[name] = module
    for element in _used(root) if known else ():
        element.raw = known.get(element.text, element.raw)


def _module(element: Element) -> str:
    return next((child.text.removeprefix("amps-") for child in element.all("Module")), "")


def _used(element: Element) -> Iterator[Element]:
    for child in element.children:
        if child.name == "MessageTypes":
            continue
        if child.name == "MessageType" and not child.children:
            yield child
        yield from _used(child)


def _kind(book: Book, element: Element, module: str, parts: Mapping[str, str], folder: Path) -> str | None:
    """The type with its schemas; None where it cannot be had, which is told."""
    there = len(book.mistakes)
    for child in element.children:
        if child.name not in _PARTS[module]:
            hint = known_name(child.name, list(_PARTS[module]))
            book.wrong(child.place(f"<MessageType> of {module}"), f"is not known{hint}")
    for tag in _PARTS[module]:
        if not parts.get(tag) and tag != "ProtoPath":
            book.wrong(element.place(), f"has no <{tag}>")
    if len(book.mistakes) > there:
        return None
    if module == AVRO:
        table: dict[str, object] = {AVRO: str(folder / parts["SchemaFile"])}
        place = element.all("SchemaFile")[0]
    else:
        place = element.all("ProtoFile")[0]
        made = (folder / parts.get("ProtoPath", "") / parts["ProtoFile"]).with_suffix(".pb")
        if not made.is_file():
            source = parts["ProtoFile"]
            book.wrong(
                place.place(),
                f"{source!r} is read as protoc has it, and there is no {made}: protoc --include_imports "
                f"--descriptor_set_out={made.name} {source}",
            )
            return None
        table = {PROTOBUF: str(made), "message": parts["Type"]}
    try:
        return of_files(table)
    except ValueError as error:
        book.wrong(place.place(), str(error))
        return None
