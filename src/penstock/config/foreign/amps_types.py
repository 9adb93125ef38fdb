"""`MessageTypes`: names for types of bodies, of which those with schemas bring these from files.

    <MessageType>
      <Name>orders</Name> <Module>protobuf</Module>
      <ProtoPath>proto</ProtoPath> <ProtoFile>shop.proto</ProtoFile> <Type>shop.Order</Type>
    </MessageType>

A name stands for its type in every `<MessageType>` of the file.  Of protobuf what is read is what `protoc` has made of
the file, `shop.pb` beside it; of Avro (`<Module>avro</Module>`, which AMPS has not) `<SchemaFile>`.  Types that need no
schema are there without being declared: a name for one is that type.  Which types a file may use is said here too, for
it is here that a person finds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.config.foreign.converted import Book, Element
from penstock.config.queue_values import of_files
from penstock.errors import known_name
from penstock.records.message_types import AVRO, MESSAGE_TYPES, PROTOBUF, SCHEMA_TYPES

_PARTS: Mapping[str, tuple[str, ...]] = {
    PROTOBUF: ("Name", "Module", "ProtoPath", "ProtoFile", "Type"),
    AVRO: ("Name", "Module", "SchemaFile"),
}

_OPTIONAL = "ProtoPath"

_USERS = ("SOW", "TransactionLog", "Actions", "Replication")
"""Sections whose types have a meaning here."""


def with_schemas(section: Element) -> bool:
    """Whether a section declares types that are not there without it."""
    return any(_module(element) in SCHEMA_TYPES for element in section.children)


def name_types(book: Book, root: Element, folder: Path) -> None:
    """Put the types themselves wherever the file names those that it declares.  Mistakes are told in the book."""
    known, others = _declared(book, root, folder)
    for element, of in (used for section in root.all(*_USERS) for used in _used(section)):
        if why := _unknown(element.text, known, others):
            book.wrong(element.place(of), why)
        element.raw = known.get(element.text) or element.raw


def _declared(book: Book, root: Element, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Types by the names that the file gives them, and names of what is no type here, each with its module."""
    known, others = dict[str, str](), dict[str, str]()
    for element in (one for section in root.all("MessageTypes") for one in section.all("MessageType")):
        name, module = next((child.text for child in element.all("Name")), ""), _module(element)
        if not name:
            book.wrong(element.place("<MessageTypes>"), "has no <Name>")
        elif module in SCHEMA_TYPES:
            known[name] = _kind(book, element, module, folder) or ""
        elif module in MESSAGE_TYPES and name not in MESSAGE_TYPES:
            known[name] = module
        elif name not in MESSAGE_TYPES:
            others[name] = f"{module or 'none'} (line {element.line})"
    return known, others


def _module(element: Element) -> str:
    return next((child.text.removeprefix("amps-") for child in element.all("Module")), "")


def _used(element: Element) -> Iterator[tuple[Element, str]]:
    """Each place where a type is named, and of what."""
    for child in element.children:
        if child.name == "MessageType" and not child.children:
            name = next((f' "{one.text}"' for one in element.all("Name", "Topic")), "")
            yield child, f"<{element.name}>{name}"
        yield from _used(child)


def _unknown(text: str, known: Mapping[str, str], others: Mapping[str, str]) -> str | None:
    """Why this names no type."""
    if not text or text in known or text in MESSAGE_TYPES:
        return None
    if text in SCHEMA_TYPES:
        needed = ", ".join(f"<{tag}>" for tag in _PARTS[text] if tag not in ("Module", _OPTIONAL))
        return (
            f"{text!r} needs a schema: declare a <MessageType> in <MessageTypes>, with <Module>{text}</Module> and "
            f"{needed}, and use its name here"
        )
    there = ", ".join((*MESSAGE_TYPES, *SCHEMA_TYPES))
    if text in others:
        return f"{text!r} is of the module {others[text]}, which is no message type here: there is {there}"
    near = known_name(text, [*known, *MESSAGE_TYPES])
    return f"{text!r} is no message type: there is {there}, and what <MessageTypes> gives a name{near}"


def _kind(book: Book, element: Element, module: str, folder: Path) -> str | None:
    """The type with its schemas; None where it cannot be had, which is told."""
    parts, there = {child.name: child.text for child in element.children}, len(book.mistakes)
    for child in element.children:
        if child.name not in _PARTS[module]:
            hint = known_name(child.name, list(_PARTS[module]))
            book.wrong(child.place(f"<MessageType> of {module}"), f"is not known{hint}")
    for tag in _PARTS[module]:
        if not parts.get(tag) and tag != _OPTIONAL:
            book.wrong(element.place(), f"has no <{tag}>")
    if len(book.mistakes) > there:
        return None
    if module == AVRO:
        table: dict[str, object] = {AVRO: str(folder / parts["SchemaFile"])}
        place = element.all("SchemaFile")[0]
    else:
        place = element.all("ProtoFile")[0]
        source = parts["ProtoFile"]
        places = _made(element, folder, source)
        made = next((one for one in places if one.is_file()), None)
        if made is None:
            looked = " or ".join(dict.fromkeys(map(str, places)))
            book.wrong(
                place.place(),
                f"{source!r} is read as protoc has it, and there is no {looked}: protoc --include_imports "
                f"--descriptor_set_out={places[0].name} {source}",
            )
            return None
        table = {PROTOBUF: str(made), "message": parts["Type"]}
    try:
        return of_files(table)
    except ValueError as error:
        book.wrong(place.place(), str(error))
        return None


def _made(element: Element, folder: Path, source: str) -> list[Path]:
    """Where what protoc made of a file may be.  AMPS writes a path as a folder, or as `name;folder`, of which files of
    that folder begin with the name."""
    found = list[Path]()
    for path in element.all("ProtoPath"):
        name, _, where = path.text.rpartition(";")
        if not name or source.startswith(f"{name}/"):
            found.append(folder / where / source.removeprefix(f"{name}/" if name else ""))
    return [one.with_suffix(".pb") for one in found or [folder / source]]
