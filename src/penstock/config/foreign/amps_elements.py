"""Tables of elements: an element of AMPSConfig, our key, and how its text is read; and reading one by its table.

A row without a key is known and has no meaning here; its sentence says why.  Unknown names, repeats and bad texts
become mistakes with a line.

Values are as AMPS writes them, and become what our settings file writes for the same: intervals `250us 15m 2h 1d` (a
bare number is seconds), sizes `64KB 1GB 2G`, words for yes and no, recovery points.  Each reader takes the text of an
element and raises ValueError with a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, cast

from penstock.config.foreign.converted import Book, Element, Place, Table, Verdict
from penstock.config.queue_values import COUNT_MAX, TEN_YEARS_US
from penstock.errors import known_name
from penstock.records.dataclass import dataclass
from penstock.records.queue_settings import POINT_WORDS, plain_point
from penstock.units import format_duration, parse_duration, parse_size

Read: TypeAlias = Callable[[str], object]

YES = frozenset({"true", "yes", "on", "enabled", "1"})
NO = frozenset({"false", "no", "off", "disabled", "0"})

_INTERVAL = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ns|us|ms|s|m|h|d|w|)\Z", re.IGNORECASE)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)b?\Z", re.IGNORECASE)
_BOOKMARK = re.compile(r"[0-9]+\|[0-9]+\|\Z")
_TIMESTAMP = re.compile(r"[0-9]{8}T[0-9]{6}(?:\.[0-9]{1,9})?Z?\Z")


def text(value: str) -> str:
    """Any text but none."""
    if not value:
        raise ValueError("is empty")
    return value


def name(value: str) -> str:
    """A name of at most 255 bytes."""
    if len(text(value).encode()) > 255:
        raise ValueError(f"is {len(value.encode())} bytes long; a name has at most 255")
    return value


def words(*known: str) -> Read:
    """One of some words."""

    def read(value: str) -> str:
        if value not in known:
            raise ValueError(f"{value!r} is not one of {', '.join(known)}{known_name(value, list(known))}")
        return value

    return read


DIGITS_MOST = 40
"""Of a number so many are read and shown: any that has more is too large."""


def count(low: int) -> Read:
    """A whole number from `low` on."""

    def read(value: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]+", value):
            raise ValueError(f"{value!r} is not a whole number")
        number = int(value[:DIGITS_MOST])
        if not low <= number <= COUNT_MAX:
            more = "..." if len(value) > DIGITS_MOST else ""
            raise ValueError(f"{number}{more} is not in {low}..{COUNT_MAX}")
        return number

    return read


def interval(value: str) -> str:
    """A duration above zero, as text with a unit."""
    match = _INTERVAL.match(value)
    if match is None:
        raise ValueError(f"{value!r} is not an interval: write a number and a unit, as in 15m or 2h")
    number, unit = match[1], match[2].lower() or "s"
    written = f"{number}{unit}"
    micros = int(float(number) / 1000) if unit == "ns" else parse_duration(written)
    if not 0 < micros <= TEN_YEARS_US:
        raise ValueError(f"{value!r} is not between 1us and ten years")
    return format_duration(micros) if unit == "ns" else written


def interval_or_none(value: str) -> str | None:
    """A duration; None for `0`, `disabled` and the other words for no."""
    if value.lower() in NO or re.fullmatch(r"0+(\.0+)?\s*[a-z]*", value.lower()):
        return None
    return interval(value)


def interval_or_zero(value: str) -> str:
    """A duration; `0s` for `0`, `disabled` and the other words for no: where leaving it out means another one."""
    return interval_or_none(value) or "0s"


def size(value: str) -> str:
    """Bytes as text with a unit; K, M, G and T are powers of a thousand, as `KB` is in our own settings."""
    match = _SIZE.match(value)
    if match is None:
        raise ValueError(f"{value!r} is not a size: write a number and a unit, as in 64MB or 1GB")
    written = f"{match[1]}{match[2].upper()}B"
    parse_size(written)
    return written


def yes_or_no(value: str) -> bool:
    """Any of the words for yes and no."""
    word = value.lower()
    if word not in YES | NO:
        raise ValueError(f"{value!r} is not one of enabled, disabled, true, false")
    return word in YES


def recovery_point(value: str) -> str:
    """`epoch`, `now`, `creation`, a bookmark or a timestamp."""
    if value.lower() in POINT_WORDS or _BOOKMARK.match(value) or _TIMESTAMP.match(value):
        return plain_point(value)
    raise ValueError(
        f"{value!r} is not one of epoch, now, creation, a bookmark such as 1234|56| "
        f"or a timestamp such as 20260131T235959Z{known_name(value, ['epoch', 'now', 'creation'])}"
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One element.  `many` may stand more than once and gives a list; `inner` is an element with elements inside."""

    key: str = ""
    read: Read = text
    many: bool = False
    inner: bool = False
    why: str = ""


def _not_here(why: str) -> Row:
    return Row(inner=True, many=True, why=why)


_NAMED = {
    "Name": Row("name", name),
    "Topic": Row("name", name),
    "MessageType": Row("message_type"),
}
_FILES = _not_here("the log is the only store here")
_INDEXED = _not_here("indexes are made as queries need them")
_SYNCED = _not_here("a confirm waits for its own sync: see server.sync")

QUEUE: Mapping[str, Row] = {
    **_NAMED,
    "UnderlyingTopic": Row("underlying_topic", name),
    "DefaultPublishTarget": Row("default_publish_target", name),
    "LeasePeriod": Row("lease_period", interval_or_none),
    "Semantics": Row("semantics", words("at-least-once", "at-most-once")),
    "MaxBacklog": Row("max_backlog", count(1)),
    "MaxPerSubscriptionBacklog": Row("max_per_subscription_backlog", count(1)),
    "Expiration": Row("expiration", interval_or_none),
    "ExpirationModel": Row("expiration_model", words("default", "queue", "latest", "earliest")),
    "Filter": Row("filter"),
    "RecoveryPoint": Row("recovery_point", recovery_point),
    "FairnessModel": Row("fairness_model", words("fast", "round-robin", "proportional")),
    "Leasing": Row("leasing", words("sublet", "strict")),
    "MaxDeliveries": Row("max_deliveries", count(0)),
    "MaxCancels": Row("max_cancels", count(0)),
    "Priority": Row("priority_expression"),
    "BarrierExpression": Row("barrier_expression"),
    "FileBackedMetadata": Row("file_backed_metadata", yes_or_no),
    "TargetQueueDepth": Row("target_queue_depth", count(1000)),
    "DeferredAckExpiration": Row("deferred_ack_expiration", interval_or_zero),
    "InitialOwner": Row("initial_owner", name),
    "GroupLocalQueueDomain": Row("group_local_queue_domain", name),
}
"""A queue of any kind."""

QUEUE_KINDS: Mapping[str, str] = {
    "Queue": "distributed",
    "QueueDefinition": "distributed",
    "LocalQueue": "local",
    "GroupLocalQueue": "group-local",
}
"""The tag of a queue -> our `kind`."""

TOPIC: Mapping[str, Row] = {
    **_NAMED,
    "Key": Row("key", many=True),
    "Expiration": Row("expiration"),
    **dict.fromkeys(("FileName", "Durability", "SlabSize", "RecordSize", "InitialSize", "IncrementSize"), _FILES),
    **dict.fromkeys(("HashIndex", "Index"), _INDEXED),
    "KeyDomain": Row("key_domain", name),
    "RecoveryPoint": _not_here("a topic recovers from the log"),
    "Preprocessing": Row("preprocessing", inner=True),
    "Enrichment": Row("enrichment", inner=True),
    "History": Row("history", inner=True),
    "Pattern": Row("pattern"),
    "KeyGenerator": Row("key_generator", inner=True),
}
"""A topic in the State of the World."""

VIEW: Mapping[str, Row] = {
    **_NAMED,
    "UnderlyingTopic": Row("source", inner=True),
    "Projection": Row("select", inner=True),
    "Grouping": Row("group_by", inner=True),
    "Filter": Row("filter"),
    "Conflation": Row("conflation", words("none", "inline")),
    "JoinNullEquivalency": Row("join_null_equivalency", yes_or_no),
    "FileName": _FILES,
    "HashIndex": _INDEXED,
    "KeyDomain": _not_here("the key of a row is the values of its group"),
}

CONFLATED_TOPIC: Mapping[str, Row] = {
    **_NAMED,
    "UnderlyingTopic": Row("source", name),
    "Interval": Row("interval", interval),
    "Filter": Row("filter"),
    "HashIndex": _INDEXED,
    "Enrichment": Row("enrichment", inner=True),
    "TopicFormat": Row("topic_format"),
}

SOW_KINDS: Mapping[str, str] = {
    **dict.fromkeys(QUEUE_KINDS, "queue"),
    **dict.fromkeys(("Topic", "TopicDefinition", "TopicMetaData"), "topic"),
    **dict.fromkeys(("View", "ViewDefinition"), "view"),
    **dict.fromkeys(("ConflatedTopic", "TopicReplica", "ReplicaDefinition"), "conflated_topic"),
}
"""A child of `SOW` -> our section."""

_SLOW = ("MessageDiskLimit", "MessageDiskPath", "ClientMessageAgeLimit", "ClientMaxCapacity", "SlowClientDisconnect")
_MODULES = ("UserDefinedFunctions", "Modules", "Extensions", "Externals")

NO_MEANING: Mapping[str, str] = {
    "ProcessName": "the process is called penstock",
    **dict.fromkeys(("Description", "Environment"), "for people"),
    **dict.fromkeys(("SuggestedMinimumVersion", "RequiredMinimumVersion"), "a version of AMPS"),
    "ConfigIncludeCommentDefault": "errors name the included file",
    "ConfigCycleDetectionThreshold": "the limits are 5 MB, 64 files and 8 levels",
    "ConfigValidation": "settings are always validated",
    "RegexTopicSupport": "a topic is a pattern when it holds one of ^ $ * + ? ( ) [ ] { } | \\",
    **dict.fromkeys(_MODULES, "modules of AMPS are not loaded"),
    "MessageMemoryLimit": "the budget is server.memory",
    **dict.fromkeys(_SLOW, "consumers are held by backlog and credit, and never written to files"),
    **dict.fromkeys(("MiniDumpDirectory", "MiniDumpFileMask", "MiniDump"), "there are no minidumps"),
    "Tuning": "the server tunes itself",
    "SOWStatisticsInterval": "figures are in the metrics, whenever they are asked for",
    **dict.fromkeys(("Transports", "Protocols"), "served by AMQP, Flight and HTTP: see [listen]"),
    "MessageTypes": "the types are there without being declared",
    "Logging": "messages go to standard error",
    "Admin": "figures and health are at listen.http",
}
"""Children of `AMPSConfig` that are known and change nothing here."""

DIFFERENT: Mapping[str, str] = {
    "Authentication": "who may log in is [[user]]; without any: guest, from this machine alone",
}
"""Children of `AMPSConfig` whose purpose is served in another way here."""

_READ = ("Name", "Group", "SOW", "TransactionLog", "Actions", "Replication", "Entitlement")

SECTIONS = frozenset({*_READ, *NO_MEANING, *DIFFERENT})
"""Every child that `AMPSConfig` may have."""

TRANSACTION_LOG: Mapping[str, Row] = {
    "JournalDirectory": Row("data"),
    "JournalSize": Row("segment", size),
    "Topic": Row("topic", many=True, inner=True),
    "PreallocatedJournalFiles": _not_here("room is made as the log grows"),
    "MinJournalSize": _not_here("segments grow as they are written"),
    "JournalArchiveDirectory": Row("archive"),
    **dict.fromkeys(("FlushInterval", "O_DIRECT"), _SYNCED),
    "BatchSize": _not_here("a commit takes what has gathered"),
    "MessageDiscoveryDirectory": _not_here("the log is its own index"),
    "InactiveClientAckExpiration": Row("publisher_expiration", interval_or_none),
}

LOGGED_TOPIC: Mapping[str, Row] = {**_NAMED}


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

    def into(self, table: Table, *keys: str) -> None:
        """Put the values of these keys, as far as there are any, into a table."""
        for key in keys:
            if key in self.values:
                table.put(key, self.values[key], self.place(key))


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


def needs(book: Book, element: Element, of: str, *tags: str) -> None:
    """What an element has to hold is there."""
    for tag in tags:
        if not element.all(tag):
            book.wrong(element.place(of), f"has no <{tag}>")


def lacks(book: Book, place: Place, fields: Fields, **tags: str) -> None:
    """Those of our keys, each with its tag, that an element does not say."""
    for key, tag in tags.items():
        if key not in fields.elements:
            book.wrong(place, f"has no <{tag}>")


def once(book: Book, element: Element, *tags: str) -> None:
    """What may stand once does."""
    for tag in tags:
        for again in element.all(tag)[1:]:
            book.wrong(again.place(f"<{element.name}>"), f"is there twice ({seen(element.all(tag)[0], again)})")


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
