"""The instance itself: its name and group, the transaction log, replication."""

from __future__ import annotations

from penstock.config.ampsconfig import values
from penstock.config.ampsconfig.elements import LOGGED_TOPIC, TRANSACTION_LOG
from penstock.config.ampsconfig.reading import read_fields, stray, unknown
from penstock.config.foreign.converted import Book, Verdict
from penstock.config.foreign.document import Element
from penstock.config.patterns import topic_pattern
from penstock.config.places import Place
from penstock.records.regular_expressions import SPECIAL
from penstock.units import parse_size

SEGMENT_MIN, SEGMENT_MAX = "64KiB", "1GiB"

_IN_NO_NAME = frozenset(" /\\$~")


def read_name(book: Book, element: Element, key: str) -> None:
    """`Name` and `Group` into `[server]`."""
    place = element.place("<AMPSConfig>")
    try:
        name = values.name(element.text)
    except ValueError as error:
        book.wrong(place, str(error))
        return
    bad = sorted(_IN_NO_NAME.intersection(name))
    if key == "name" and bad:
        book.wrong(place, f"{name!r} holds {bad[0]!r}; a name has no blank, /, \\, $ or ~")
        return
    book.put("server", key, name, place)


def read_transaction_log(book: Book, element: Element) -> None:
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
    for key, tag in (("name", "Name"), ("message_type", "MessageType")):
        if key not in fields.elements:
            book.wrong(element.place("<TransactionLog>"), f"has no <{tag}>")
    name = fields.text("name")
    if name is None:
        return
    patterns.append(name)
    place = fields.place("name")
    if _is_view(book, name):
        book.remark(Verdict.NO_MEANING, place, f"{name!r} is a queue: its state is always in the log")
    elif not any(topic.get("name") == name for topic in book.tables("topic")):
        book.add("topic", {"name": name}, Place(element.file, element.line, fields.of), {("name",): place})


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


def read_replication(book: Book, element: Element) -> None:
    """Checked as far as it goes, and of no effect: there is one instance."""
    stray(book, element)
    for child in element.children:
        if child.name != "Destination":
            unknown(book, child, "<Replication>", ["Destination"])
            continue
        _destination(book, child)
    book.remark(Verdict.NO_MEANING, element.place(), "nothing is replicated in this version")


def _destination(book: Book, element: Element) -> None:
    of = "<Destination>"
    for kind in element.all("SyncType"):
        try:
            values.words("sync", "async")(kind.text)
        except ValueError as error:
            book.wrong(kind.place(of), str(error))
    for tag in ("SyncType", "Topic", "Transport"):
        if not element.all(tag):
            book.wrong(element.place("<Replication>"), f"has no <{tag}>")
    for topic in element.all("Topic"):
        for tag in ("Name", "MessageType"):
            if not any(child.text for child in topic.all(tag)):
                book.wrong(topic.place(of), f"has no <{tag}>")
    for transport in element.all("Transport"):
        if not any(child.text for child in transport.all("InetAddr")):
            book.wrong(transport.place(of), "has no <InetAddr>")
