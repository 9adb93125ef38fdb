"""The whole document: each section to its reader, in an order in which a later one may ask for an earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.config.ampsconfig.actions import read_actions
from penstock.config.ampsconfig.elements import DIFFERENT, NO_MEANING, SECTIONS
from penstock.config.ampsconfig.entitlement import read_entitlement
from penstock.config.ampsconfig.expand import Expander
from penstock.config.ampsconfig.instance import read_name, read_replication, read_transaction_log
from penstock.config.ampsconfig.reading import seen, stray, unknown
from penstock.config.ampsconfig.sow import read_sow
from penstock.config.ampsconfig.values import NO
from penstock.config.foreign.converted import Book, Converted, Verdict
from penstock.config.foreign.document import Element
from penstock.records.regular_expressions import SPECIAL


def read_ampsconfig(root: Element, path: Path, environ: Mapping[str, str]) -> Converted:
    """Our settings out of `<AMPSConfig>`, or out of one of its sections alone as examples print it.

    Raises SettingsError with every mistake, each with its line.
    """
    if root.name != "AMPSConfig":
        root = Element("AMPSConfig", root.file, root.line, children=[root])
    book = Book()
    Expander(book, path, environ).expand(root)
    stray(book, root)
    for element in root.children:
        if element.name not in SECTIONS:
            unknown(book, element, "<AMPSConfig>", SECTIONS)
        elif element.name in NO_MEANING:
            book.remark(Verdict.NO_MEANING, element.place(), NO_MEANING[element.name])
        elif element.name in DIFFERENT:
            book.remark(Verdict.DIFFERS, element.place(), DIFFERENT[element.name])
    for tag in ("Name", "Group", "TransactionLog"):
        for again in root.all(tag)[1:]:
            book.wrong(again.place("<AMPSConfig>"), f"is there twice ({seen(root.all(tag)[0], again)})")
    for tag, key in (("Name", "name"), ("Group", "group")):
        for element in root.all(tag)[:1]:
            read_name(book, element, key)
    read_sow(book, root.all("SOW"))
    for element in root.all("RegexTopicSupport"):
        _literal_topics(book, element)
    for element in root.all("TransactionLog")[:1]:
        read_transaction_log(book, element)
    read_actions(book, root.all("Actions"))
    for element in root.all("Entitlement"):
        read_entitlement(book, element)
    for element in root.all("Replication"):
        read_replication(book, element)
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
