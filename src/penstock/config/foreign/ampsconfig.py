"""AMPSConfig XML, as documented for AMPS 5.2 to 5.3, read into our settings.

Each section goes to its reader, in an order in which a later one may ask for an earlier one: `amps_elements` has the
tables and the ways values are written, `amps_queues`, `amps_links` and `amps_actions` one section each.
What AMPS refuses is refused with its line; what is another thing here is remarked.

Of the instance itself its name and group, and the transaction log are read here.  An `Entitlement` whose
module allows everything needs no setting; what another decides is not known here.

`MessageTypes` give names to types of bodies, of which those with schemas bring these from files:

    <MessageType>
      <Name>orders</Name> <Module>protobuf</Module>
      <ProtoPath>proto</ProtoPath> <ProtoFile>shop.proto</ProtoFile> <Type>shop.Order</Type>
    </MessageType>

A name stands for its type in every `<MessageType>` of the file.  Of protobuf what is read is what `protoc` has made of
the file, `shop.pb` beside it; of Avro (`<Module>avro</Module>`, which AMPS has not) `<SchemaFile>`.  Types that need no
schema are there without being declared: a name for one is that type.  Which types a file may use is said here too, for
it is here that a person finds them.

Before that `${NAME}` and `<Include>` are put in, each element still knowing its own file and line.  A variable is one
of the environment, or AMPS_CONFIG_DIRECTORY and AMPS_CONFIG_PATH.  An included file lies in the folder of the main file
or below it; its root element takes the place of `<Include>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.config.foreign import amps_elements
from penstock.config.foreign.amps_actions import read_actions
from penstock.config.foreign.amps_elements import (
    DIFFERENT,
    LOGGED_TOPIC,
    NO,
    NO_MEANING,
    SECTIONS,
    TRANSACTION_LOG,
    lacks,
    once,
    read_fields,
    stray,
    unknown,
)
from penstock.config.foreign.amps_links import read_replication
from penstock.config.foreign.amps_queues import begun, read_sow
from penstock.config.foreign.converted import (
    BYTES_MAX,
    TOLD_MOST,
    Book,
    Converted,
    Element,
    Place,
    Verdict,
    parse_xml,
    read_bytes,
)
from penstock.config.queue_values import of_files
from penstock.errors import SettingsError, known_name
from penstock.records.message_types import AVRO, MESSAGE_TYPES, PROTOBUF, SCHEMA_TYPES
from penstock.records.regular_expressions import SPECIAL, topic_pattern
from penstock.units import parse_size

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


_LEVELS_MAX = 8
_FILES_MAX = 64

_VARIABLE = re.compile(r"\$\{(?!\{)([^{}]*)(\}?)")
"""Two braces begin a word of an action, behind whatever sign."""


class _Expander:
    """One main file and what it includes."""

    def __init__(self, book: Book, path: Path, environ: Mapping[str, str]) -> None:
        self._book = book
        self._folder = path.resolve().parent
        self._shown_folder = path.parent
        self._main = str(path)
        self._variables = {
            **environ,
            "AMPS_CONFIG_DIRECTORY": str(self._folder),
            "AMPS_CONFIG_PATH": str(path.resolve()),
        }
        self._open = [path.resolve()]
        self._files = 1
        self._bytes = 0

    def expand(self, element: Element) -> None:
        """Put values and included elements in place, all the way down."""
        if "${" in element.raw:
            element.raw = self._filled(element)
        if any(child.name == "Include" for child in element.children):
            element.children = [one for child in element.children for one in self._with_included(child)]
        else:
            for child in element.children:
                self.expand(child)

    def _filled(self, element: Element) -> str:
        def filled(match: re.Match[str]) -> str:
            name = match[1]
            if not name or not match[2]:
                self._book.wrong(element.place(), f"{match[0]!r} is no variable: write ${{NAME}}")
                return match[0]
            if name not in self._variables:
                few = len(self._book.mistakes) < TOLD_MOST
                hint = known_name(name, list(self._variables)) if few else ""
                self._book.wrong(element.place(), f"the environment has no variable {name}{hint}")
                return match[0]
            value = self._variables[name]
            if any("\ud800" <= sign <= "\udfff" for sign in value):
                self._book.wrong(element.place(), f"the environment variable {name} is not UTF-8")
                return match[0]
            self._bytes += len(value)
            if self._bytes > BYTES_MAX:
                what = f"what is included and what variables stand for is larger than {BYTES_MAX:,} bytes"
                raise SettingsError(element.place().told(what))
            return value

        return _VARIABLE.sub(filled, element.raw)

    def _with_included(self, element: Element) -> list[Element]:
        if element.name != "Include":
            self.expand(element)
            return [element]
        mistakes = len(self._book.mistakes)
        element.raw = self._filled(element)
        if len(self._book.mistakes) > mistakes:
            return []
        root = self._included(element)
        return [] if root is None else [root]

    def _included(self, element: Element) -> Element | None:
        name = element.text
        path = (Path(element.file).parent / name).resolve()
        wrong: str | None = None
        if not name:
            wrong = "names no file"
        elif not path.is_relative_to(self._folder):
            wrong = f"{name!r} is outside of the folder of {self._main}"
        elif path in self._open:
            wrong = f"{name!r} includes itself"
        elif len(self._open) > _LEVELS_MAX:
            wrong = f"{name!r} is more than {_LEVELS_MAX} levels deep"
        elif self._files >= _FILES_MAX:
            wrong = f"{name!r} is one file more than {_FILES_MAX}"
        if wrong is not None:
            self._book.wrong(element.place(), wrong)
            return None
        shown = str(self._shown_folder / path.relative_to(self._folder))
        data = read_bytes(path, f"{element.file}:{element.line}: <Include>: {shown}")
        self._files += 1
        self._bytes += len(data)
        if self._bytes > BYTES_MAX:
            self._book.wrong(element.place(), f"all included files together are larger than {BYTES_MAX:,} bytes")
            return None
        root = parse_xml(data, shown)
        self._open.append(path)
        self.expand(root)
        self._open.pop()
        return root


SEGMENT_MIN, SEGMENT_MAX = "64KiB", "1GiB"

_IN_NO_NAME = frozenset(" /\\$~")


def _read_name(book: Book, element: Element, key: str) -> None:
    """`Name` and `Group` into `[server]`."""
    place = element.place("<AMPSConfig>")
    try:
        name = amps_elements.name(element.text)
    except ValueError as error:
        book.wrong(place, str(error))
        return
    bad = sorted(_IN_NO_NAME.intersection(name))
    if key == "name" and bad:
        book.wrong(place, f"{name!r} holds {bad[0]!r}; a name has no blank, /, \\, $ or ~")
        return
    book.put("server", key, name, place)


def _read_transaction_log(book: Book, element: Element) -> None:
    """Where the log is, how large its files are, and the topics that it keeps whoever takes them."""
    fields = read_fields(book, element, TRANSACTION_LOG)
    folder = fields.text("data")
    if folder is not None:
        book.put("server", "data", folder, fields.place("data"))
    archive = fields.text("archive")
    if archive is not None:
        place = fields.place("archive")
        book.put("log", "archive", {"folder": archive}, place)
        below = "" if archive.startswith("/") else ", below the data folder"
        book.remark(Verdict.DIFFERS, place, f"{archive!r}: closed files of the log are kept there as Parquet{below}")
    journal = fields.text("segment")
    if journal is not None:
        book.put("log", "segment", _segment(book, journal, fields.place("segment")), fields.place("segment"))
    if (kept := fields.text("publisher_expiration")) is not None:
        book.put("log", "publisher_expiration", kept, fields.place("publisher_expiration"))
    patterns: list[str] = []
    for topic in element.all("Topic"):
        _logged(book, topic, patterns)
    _unlogged(book, patterns)


def _segment(book: Book, size: str, place: Place) -> str:
    for limit, word in ((SEGMENT_MIN, "at least"), (SEGMENT_MAX, "at most")):
        beyond = parse_size(size) - parse_size(limit)
        if beyond < 0 if word == "at least" else beyond > 0:
            book.remark(Verdict.DIFFERS, place, f"{size!r}: a segment of the log is {word} {limit} here")
            return limit
    return size


def _logged(book: Book, element: Element, patterns: list[str]) -> None:
    fields = read_fields(book, element, LOGGED_TOPIC)
    lacks(book, element.place("<TransactionLog>"), fields, name="Name", message_type="MessageType")
    name = fields.text("name")
    if name is None:
        return
    patterns.append(name)
    place = fields.place("name")
    if _is_view(book, name):
        book.remark(Verdict.NO_MEANING, place, f"{name!r} is a queue: its state is always in the log")
    elif not any(topic.get("name") == name for topic in book.tables("topic")):
        book.add("topic", begun(fields), Place(element.file, element.line, fields.of))


def _is_view(book: Book, name: str) -> bool:
    """Whether a queue of this name shows another topic, so that nothing is ever stored under the name itself."""
    return any(queue["name"] == name and queue.get("underlying_topic", name) != name for queue in book.tables("queue"))


def _unlogged(book: Book, patterns: list[str]) -> None:
    """AMPS wants the topics of queues in the transaction log; here they are, listed or not."""
    for index, queue in enumerate(book.tables("queue")):
        topic = str(queue.get("underlying_topic", queue["name"]))
        if SPECIAL.intersection(topic):
            continue
        try:
            listed = any(topic_pattern(pattern)(topic) for pattern in patterns)
        except ValueError:
            return  # a pattern that cannot be read matters to nobody here
        if not listed:
            place = book.places["queue", index]
            book.remark(
                Verdict.DIFFERS,
                place,
                f"its topic {topic!r} is not in <TransactionLog>: what a queue sees is always logged here",
            )


def _alone(book: Book) -> None:
    """Queues that are shared with others in some way, where there are no others."""
    for index, queue in enumerate(book.tables("queue")):
        if queue.get("kind", "local") != "local" and not book.tables("link"):
            place = book.places["queue", index, "kind"]
            book.remark(Verdict.DIFFERS, place, "there is one instance, which owns all messages of the queue")


_ALLOWS_ALL = "amps-default-entitlement-module"


def _read_entitlement(book: Book, element: Element) -> None:
    """A remark, or a refusal: rights that somebody counts on must not be dropped in silence."""
    stray(book, element)
    modules = element.all("Module")
    if not modules:
        book.wrong(element.place("<AMPSConfig>"), "has no <Module>")
        return
    module = modules[0]
    if module.text == _ALLOWS_ALL:
        book.remark(Verdict.NO_MEANING, element.place(), "without [[entitlement]] everything is allowed")
    else:
        book.remark(Verdict.REFUSED, module.place("<Entitlement>"), f"{module.text!r}; write [[entitlement]] instead")


def _tell_of_sections(book: Book, root: Element) -> None:
    """Which of them are unknown, say nothing to us, or something else."""
    for element in root.children:
        if element.name not in SECTIONS:
            unknown(book, element, "<AMPSConfig>", SECTIONS)
        elif element.name == "MessageTypes" and with_schemas(element):
            continue
        elif element.name in NO_MEANING:
            book.remark(Verdict.NO_MEANING, element.place(), NO_MEANING[element.name])
        elif element.name in DIFFERENT:
            book.remark(Verdict.DIFFERS, element.place(), DIFFERENT[element.name])


def read_ampsconfig(root: Element, path: Path, environ: Mapping[str, str]) -> Converted:
    """Our settings out of `<AMPSConfig>`, or out of one of its sections alone as examples print it.

    Raises SettingsError with every mistake, each with its line.
    """
    if root.name != "AMPSConfig":
        root = Element("AMPSConfig", root.file, root.line, children=[root])
    book = Book()
    _Expander(book, path, environ).expand(root)
    stray(book, root)
    name_types(book, root, path.parent)
    _tell_of_sections(book, root)
    once(book, root, "Name", "Group", "TransactionLog")
    for tag, key in (("Name", "name"), ("Group", "group")):
        for element in root.all(tag)[:1]:
            _read_name(book, element, key)
    read_sow(book, root.all("SOW"))
    for element in root.all("RegexTopicSupport"):
        _literal_topics(book, element)
    for element in root.all("TransactionLog")[:1]:
        _read_transaction_log(book, element)
    read_actions(book, root.all("Actions"))
    for element in root.all("Entitlement"):
        _read_entitlement(book, element)
    for element in root.all("Replication"):
        read_replication(book, element)
    _alone(book)
    return book.close("AMPSConfig", str(path))


def _literal_topics(book: Book, element: Element) -> None:
    """With `RegexTopicSupport` off, a topic that looks like a pattern is none; here it would be one."""
    if element.text.lower() not in NO:
        return
    for index, queue in enumerate(book.tables("queue")):
        topic = queue.get("underlying_topic")
        if isinstance(topic, str) and SPECIAL.intersection(topic):
            book.remark(
                Verdict.REFUSED,
                book.places["queue", index, "underlying_topic"],
                f"{topic!r} is no pattern where <RegexTopicSupport> is {element.text}; here it is one",
            )
