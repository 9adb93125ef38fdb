"""Every sentence of the documents on replication has its row, and each row a test: docs/proofs/amps.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from claims.rows import NAMED, TESTS

PAGE = Path(__file__).resolve().parents[3] / "docs/proofs/amps.md"
GUIDE, REFERENCE = "The user guide's chapter", "The configuration reference of queues"


class Row(NamedTuple):
    """A line of a table."""

    document: str
    section: str
    says: str
    here: str
    tests: tuple[str, ...]


def rows() -> Iterator[Row]:
    document = section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            document, section = line[3:], ""
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)][1:-1]
        if len(cells) == 4 and cells[0] != "section" and not cells[0].startswith("---"):
            section = cells[0] or section
            yield Row(document, section, cells[1], cells[2], tuple(NAMED.findall(cells[3])))
        elif len(cells) == 3 and not cells[0].startswith("---"):
            yield Row(document, "", cells[0], cells[1], tuple(NAMED.findall(cells[2])))


ROWS = list(rows())
SENTENCES = {
    (GUIDE, "Introduction"): ["messages are replicated between instances with the guarantees kept"],
    (GUIDE, "Replication types"): [
        "`Queue` is distributed, `LocalQueue` stays here, `GroupLocalQueue` is on some",
        "distributed by default; guarantees as if it were one queue",
        "that holds where the queue's topic or the topics below it are replicated",
        "a local queue is separate at each instance, independent, and managed there alone",
        "a local queue's topic may not be replicated",
        "a group-local queue is of some of the instances that are replicated; only those that define it deliver",
        "a group names the first owner of its messages",
        "its identity is its name with its domain, or else with the group of the instance",
        "instances of one queue need not be of one group; of different groups they set the same domain",
        "in versions before 5.3.4 every queue of one name is the same one",
    ],
    (GUIDE, "Barrier messages"): ["each instance for its own subscribers"],
    (GUIDE, "Limiting deliverable messages"): [
        "`TargetQueueDepth`: beyond it messages are inactive, still of the queue",
        "an ack ahead of the active part is kept, and the message does not enter",
        "a transfer request beyond the limit reads on up to that message, which is transferred",
        "then it stops until the depth is below the limit, or somebody asks again",
    ],
    (REFERENCE, "tags"): [
        "`Queue` is distributed, `LocalQueue` stays on one instance, `GroupLocalQueue` on some",
        "a distributed queue is consumed at any instance that hosts it",
        "every instance that takes publishes for a distributed queue hosts it",
        "a `LocalQueue` is independent of any other instance",
        "a `GroupLocalQueue` is of some of the replicated instances, as a rule those of one group",
        "`QueueDefinition` is another word for `Queue`",
        "the elements are the same whatever the tag",
    ],
    (REFERENCE, "`MaxBacklog`"): ["is of each instance: each delivers so many, if there are messages"],
    (REFERENCE, "`FairnessModel`"): ["of each instance its own, not replicated"],
    (REFERENCE, "`MaxDeliveries`"): ["the count is lost at a restart, and not replicated"],
    (REFERENCE, "`MaxCancels`"): ["the count is lost at a restart, and not replicated"],
    (REFERENCE, "`Priority`"): ["default: the order in which this instance processed them"],
    (REFERENCE, "`TargetQueueDepth`"): ["a transfer request beyond it reads on up to that message"],
    (REFERENCE, "`DeferredAckExpiration`"): [
        "as in a failover, when messages come over replication, or after a publisher's store was offline"
    ],
    (REFERENCE, "`InitialOwner`"): [
        "names the instance that owns a message first, wherever it is published",
        "required for `GroupLocalQueue`, not for the others",
        "the same in all instances that define the queue",
        "whether it is there and can be reached is not checked: take care of the name, and of a path to it and back",
    ],
    (REFERENCE, "`GroupLocalQueueDomain`"): [
        "makes queues of instances of different groups one distributed queue",
        "without it the identity is the name and the group of the instance, with it the name and the domain",
        "before 5.3.4 neither counted: the name alone was the identity",
    ],
    (REFERENCE, "snippets"): ["one way to configure a queue", "a `GroupLocalQueue` of `CONSUME_INSTANCES`"],
    ("Actions, statistics, entitlement", ""): [
        "`on-publish-message`, `Topic`, `Filter`, `MessageSource`",
        "`do-enable-proxied-transfer`, `do-disable-proxied-transfer`",
        "`do-downgrade-replication`, `do-upgrade-replication`",
        "`on-connect-replication`, `on-disconnect-replication`, `on-replication-resync-complete`",
    ],
}
"""What the user guide and the reference of queues say that needs more than one instance, by section, in the page's
words; and the actions on it."""

TOLD = [(*place, sentence) for place, sentences in SENTENCES.items() for sentence in sentences]
SPEAKS = re.compile(
    r"replicat|\binstances?\b|transfer|distributed|`(?:Local|GroupLocal)Queue|local queue|5\.3\.4|\bowns? .*first"
)
"""Words of replication."""

OF_ONE = (
    "they are not read and have no state", "in the journal directory", "queue statistics", "`details` of a queue",
    "`CLIENT_NAME`",
)  # fmt: skip
WANTING = re.compile(r"\brefused\b|\bmissing\b|not done here|not in this version|is not shared|\bunless\b.*refused")
SEVERAL = ("sites", "sim", "unit/core_links")
"""Where sites run: real ones, or real cores and logs."""

OF_FILES = {
    "`QueueDefinition` is another word for `Queue`", "required for `GroupLocalQueue`, not for the others",
}  # fmt: skip
"""What is about the file alone."""


@pytest.fixture(scope="module")
def written() -> dict[str, set[str]]:
    """Names of tests -> where they stand."""
    found = dict[str, set[str]]()
    for file in TESTS.rglob("test_*.py"):
        for name in re.findall(r"def (test_\w+)\(", file.read_text()):
            found.setdefault(name, set()).add(file.relative_to(TESTS).as_posix())
    return found


@pytest.mark.parametrize(("document", "section", "sentence"), TOLD)
def test_a_sentence_on_replication_has_its_row_and_tests_that_are_there(
    document: str, section: str, sentence: str, written: dict[str, set[str]]
) -> None:
    found = [
        row for row in ROWS
        if row.document.startswith(document) and row.section == section and row.says.startswith(sentence)
    ]  # fmt: skip
    assert len(found) == 1, found or "no row says so"
    [row] = found
    assert row.tests, row
    assert [name for name in row.tests if name not in written] == []
    if sentence not in OF_FILES:
        places = [place for name in row.tests for place in written[name]]
        assert any(place.startswith(SEVERAL) for place in places), f"no test of several sites: {row}"


def test_every_row_that_speaks_of_replication_is_in_the_list() -> None:
    listed = {
        row.says for row in ROWS for document, section, sentence in TOLD
        if row.document.startswith(document) and row.section == section and row.says.startswith(sentence)
    }  # fmt: skip
    of_queues = [row for row in ROWS if row.document.startswith((GUIDE, REFERENCE))]
    speaking = [row.says for row in of_queues if SPEAKS.search(row.says) and not row.says.startswith(OF_ONE)]
    assert [says for says in speaking if says not in listed] == []


def test_what_is_refused_is_so_by_a_choice_that_is_named() -> None:
    wanting = [row for row in ROWS if WANTING.search(row.here)]
    assert [row for row in wanting if "by choice" not in row.here and not row.here.startswith("so")] == []
    lines = PAGE.parents[1].joinpath("amps.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith(("| ", "- ")) and WANTING.search(line)]
    assert len(rows) == 6
    assert [line for line in rows if "by choice" not in line] == []
