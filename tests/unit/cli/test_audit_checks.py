"""Each check of the audit fires on a log that was forged for it; a check without one is named."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from penstock.core import audit_controls, audit_histories, audit_log
from penstock.core.audit_histories import Part, QueuePart, verdict
from penstock.history.view import stand_alone
from penstock.log.disk import OsDisk
from penstock.records.chunks import pack_pairs
from penstock.records.entries import Group
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings
from unit.cli.forging import T0, Forger, back_without_a_lease, two_holders

FINDERS = {"find", "_find", "check", "_wrong"}
"""What the audit calls to say that a promise is broken; the sentence comes last."""


def _sentences(tree: ast.AST) -> Iterator[str]:
    """The sentences that are said in a file, as patterns."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        assigned = dict[str, list[ast.expr]]()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(name := node.targets[0], ast.Name):
                assigned.setdefault(name.id, []).append(node.value)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and node.args and _called(node.func) in FINDERS:
                last = node.args[-1]
                for said in assigned.get(last.id, []) if isinstance(last, ast.Name) else [last]:
                    yield _pattern(said)


def _called(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _pattern(said: ast.expr) -> str:
    match said:
        case ast.Constant(str(text)):
            return re.escape(text)
        case ast.JoinedStr(values):
            return "".join(re.escape(str(v.value)) if isinstance(v, ast.Constant) else ".*" for v in values)
        case _:
            raise AssertionError(f"a sentence that this test cannot read: {ast.unparse(said)}")


def _all_sentences() -> list[str]:
    found = list[str]()
    for module in (audit_log, audit_histories, audit_controls):
        found += _sentences(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")))
    return sorted({one for one in found if re.sub(r"\.\*|\W", "", one)})


def _stream(f: Forger) -> None:
    f.control(Kind.STREAM, "s", {"queue": f.queue, "epoch": 1, "mode": "queue", "floor": 0})
    f.grant(10, 13)
    _plan(f, 1, 10, 13)


def _plan(f: Forger, batch: int, *pairs: int) -> None:
    f.control(Kind.PLAN, "s", {"batch": batch, "epoch": 1, "queue": f.queue}, pack_pairs(f.queue, pairs))


def _narrow(f: Forger, *pairs: int, batch: int = 1) -> None:
    header = {"batch": batch, "epoch": 1, "revision": 1, "level": [1, 2]}
    f.control(Kind.STREAM_NARROW, "s", header, pack_pairs(f.queue, pairs))


def _narrowed_to_others(f: Forger) -> None:
    _stream(f)
    _narrow(f, 14, 15)


def _narrowed_to_more(f: Forger) -> None:
    _stream(f)
    _narrow(f, 12, 15)


def _narrowed_and_not_gone(f: Forger) -> None:
    """It is settled with what it was narrowed to, which waits still."""
    _stream(f)
    _narrow(f, 10, 11)
    f.give_back(11, 13)
    f.control(Kind.PLAN_SETTLE, "s", {"batch": 1})


def _in_two_batches(f: Forger) -> None:
    _stream(f)
    _plan(f, 2, 12, 13)


def _planned_what_is_ready(f: Forger) -> None:
    _stream(f)
    _plan(f, 2, 14, 15)


def _a_batch_left_out(f: Forger) -> None:
    _stream(f)
    f.grant(13, 14)
    _plan(f, 3, 13, 14)


def _planned_under_an_old_epoch(f: Forger) -> None:
    _stream(f)
    f.control(Kind.STREAM, "s", {"queue": f.queue, "epoch": 2, "mode": "queue", "floor": 0})
    f.grant(13, 14)
    _plan(f, 2, 13, 14)


def _an_epoch_twice(f: Forger) -> None:
    _stream(f)
    f.control(Kind.STREAM, "s", {"queue": f.queue, "epoch": 1, "mode": "queue", "floor": 0})


def _a_stream_that_nobody_opened(f: Forger) -> None:
    f.control(Kind.PLAN_SETTLE, "s", {"batch": 1})


def _settled_beyond_the_plan(f: Forger) -> None:
    _stream(f)
    f.control(Kind.PLAN_SETTLE, "s", {"batch": 5})


def _doubted_beyond_the_plan(f: Forger) -> None:
    _stream(f)
    f.control(Kind.STREAM_TRY, "s", {"batch": 5, "epoch": 1, "tries": 1})


def _settled_twice(f: Forger) -> None:
    f.about(Kind.SETTLE, 12, 13)
    f.about(Kind.SETTLE, 12, 13)


def _settled_before_it_came(f: Forger) -> None:
    f.about(Kind.SETTLE, 30, 31)
    f.messages(10)


def _after_the_queue(f: Forger) -> None:
    f.about(Kind.QUEUE_DELETE)
    f.about(Kind.SETTLE, 10, 11)
    f.messages(1)


def _deleted_twice(f: Forger) -> None:
    f.about(Kind.QUEUE_DELETE)
    f.about(Kind.QUEUE_DELETE)


def _of_no_queue(f: Forger) -> None:
    f.about(Kind.SETTLE, 10, 11, queue=7)


def _purged_while_leased(f: Forger) -> None:
    f.grant(10, 12)
    f.about(Kind.PURGE, 10, 20)


def _found_what_it_had(f: Forger) -> None:
    f.about(Kind.RECOVERED, 10, 11, upto=20)


def _found_for_no_queue(f: Forger) -> None:
    f.about(Kind.RECOVERED, 10, 11, queue=7, upto=20)


def _rescheduled_while_leased(f: Forger) -> None:
    f.grant(10, 12)
    f.about(Kind.RESCHEDULE, 10, 12, not_before=T0 + 9)


def _an_attempt_left_out(f: Forger) -> None:
    f.grant(10, 12, attempt=2)


def _leased_at_most_once(f: Forger) -> None:
    settings = QueueSettings(semantics="at-most-once", fairness_model="round-robin", deliver="durable")
    queue = f.declare("once", settings)
    f.control(Kind.ROUTE, body=pack_pairs(queue, ()), route=1)
    first = f.messages(1, route=1)
    f.grant(first, first + 1, queue=queue)


def _granted_while_delayed(f: Forger) -> None:
    first = f.messages(1, not_before=T0 + 100)
    f.grant(first, first + 1)


def _due_without_a_delay(f: Forger) -> None:
    f.about(Kind.DUE, 10, 11, place=0)


def _due_too_soon(f: Forger) -> None:
    first = f.messages(1, not_before=T0 + 100)
    f.about(Kind.DUE, first, first + 1, place=0)


def _a_cause_that_stayed(f: Forger) -> None:
    letter = f.batch(1)
    dead = {"reason": "forced_expire", "dead": [[12, letter.first]]}
    f.entries.append(Group([letter, f.make(Kind.EXPIRE, "q", dead, pack_pairs(f.queue, (10, 11)))]))


def _two_causes(f: Forger) -> None:
    letter = f.batch(1)
    dead = {"reason": "forced_expire", "dead": [[10, letter.first], [11, letter.first]]}
    f.entries.append(Group([letter, f.make(Kind.EXPIRE, "q", dead, pack_pairs(f.queue, (10, 12)))]))


def _a_letter_outside_its_group(f: Forger) -> None:
    letter = f.messages(1)
    f.entries.append(f.batch(200_000))  # more rows than a batch takes
    f.about(Kind.EXPIRE, 10, 11, reason="forced_expire", dead=[[10, letter]])


def _a_transaction_outside_its_group(f: Forger) -> None:
    first = f.messages(1)
    f.entries.append(f.batch(200_000))
    f.control(Kind.TRANSACTION, "", {"first": first, "rows": 1, "ended": 0})


def _a_hole(f: Forger) -> None:
    f.lsn += 3
    f.messages(1)


def _a_crash_without_a_gap(f: Forger) -> None:
    f.boot(clean=False)


def _a_clean_start_with_a_gap(f: Forger) -> None:
    f.lsn += 1000
    f.boot()


def _no_start(f: Forger) -> None:
    del f.entries[0]


def _times_that_go_back(f: Forger) -> None:
    f.time = T0 - 1
    f.messages(1)


def _a_header_without_its_key(f: Forger) -> None:
    _stream(f)
    f.control(Kind.PLAN_SETTLE, "s", {})


def _half_a_pair(f: Forger) -> None:
    f.about(Kind.SETTLE, 10)


def _a_route_twice(f: Forger) -> None:
    f.control(Kind.ROUTE, body=pack_pairs(f.queue, ()), route=0)


def _a_route_that_nobody_told(f: Forger) -> None:
    f.messages(1, route=9)


def _a_route_to_no_queue(f: Forger) -> None:
    f.control(Kind.ROUTE, body=pack_pairs(7, ()), route=1)
    f.messages(1, route=1)


def _a_sequence_that_goes_back(f: Forger) -> None:
    f.control(Kind.PUBLISHERS, "", {"me": 9})
    f.control(Kind.PUBLISHERS, "", {"me": 9})


def _decide(f: Forger) -> None:
    f.control(Kind.DECIDED, "query", {"batch": 0, "parts": [["a", 5, 9, 7, "q", "", "/"]]})


def _committed_twice(f: Forger) -> None:
    for _ in range(2):
        f.control(Kind.SINK_COMMIT, "query", {"batch": 0, "rows": 0})


def _committed_before_all_chunks(f: Forger) -> None:
    _decide(f)
    f.control(Kind.SINK_COMMIT, "query", {"batch": 1, "rows": 0})


def _forgotten_before_all_chunks(f: Forger) -> None:
    _decide(f)
    f.control(Kind.SINK_FORGET, "", {"queries": ["query"]})


def _a_chunk_of_nothing(f: Forger) -> None:
    f.control(Kind.CHUNK, "query", {"batch": 0, "chunk": 1, "rows": 1})


def _a_chunk_too_many(f: Forger) -> None:
    _decide(f)
    f.control(Kind.CHUNK, "query", {"batch": 0, "chunk": 1, "rows": 9})


def _ruled_by_nobody(f: Forger) -> None:
    header = {"changed": {}, "ruling": {"policy": "absent", "operator_policy": None}}
    f.control(Kind.QUEUE_ALTER, "q", header, pack_pairs(f.queue, ()))


def _granted_of_another_site(f: Forger) -> None:
    header = {"owner": 1, "site": "b", "serial": 1, "why": "transfer"}
    f.control(Kind.OWN, "q", header, pack_pairs(f.queue, (10, 12)))
    f.grant(11, 13)


def _taken_by_proxy_unasked(f: Forger) -> None:
    header = {"owner": 0, "site": "a", "serial": 1, "why": "proxied"}
    f.control(Kind.OWN, "q", header, pack_pairs(f.queue, (10, 12)))


FORGED: list[Callable[[Forger], None]] = [
    _narrowed_to_others, _narrowed_to_more, _narrowed_and_not_gone, _in_two_batches, _planned_what_is_ready,
    _a_batch_left_out, _planned_under_an_old_epoch, _an_epoch_twice, _a_stream_that_nobody_opened,
    _settled_beyond_the_plan, _doubted_beyond_the_plan,
    _settled_twice, _settled_before_it_came, _after_the_queue, _deleted_twice, _of_no_queue, _purged_while_leased,
    _found_what_it_had, _found_for_no_queue,
    two_holders, back_without_a_lease, _rescheduled_while_leased, _an_attempt_left_out, _leased_at_most_once,
    _granted_while_delayed, _due_without_a_delay, _due_too_soon,
    _a_cause_that_stayed, _two_causes, _a_letter_outside_its_group, _a_transaction_outside_its_group,
    _a_hole, _a_crash_without_a_gap, _a_clean_start_with_a_gap, _no_start, _times_that_go_back,
    _a_header_without_its_key, _half_a_pair,
    _a_route_twice, _a_route_that_nobody_told, _a_route_to_no_queue, _a_sequence_that_goes_back,
    _committed_twice, _committed_before_all_chunks, _forgotten_before_all_chunks, _a_chunk_of_nothing,
    _a_chunk_too_many, _ruled_by_nobody, _granted_of_another_site, _taken_by_proxy_unasked,
]  # fmt: skip


@cache
def _found(forge: Callable[[Forger], None], times: int = 1) -> frozenset[str]:
    """What the audit finds alone, for the fold refuses some of these.  times: how often it is handed the log."""
    with TemporaryDirectory() as folder:
        log = Forger(Path(folder))
        forge(log)
        log.write()
        view = stand_alone(OsDisk(log.folder))
        looks = audit_log.Audit()
        for _ in range(times):
            for rows, groups in view.groups(0, view.durable + 1):
                looks.feed(rows, groups)
        view.close()
        return frozenset(finding.text for finding in looks.finish().findings)


@cache
def _found_by_counting() -> frozenset[str]:
    """What no log can show, for both sides are made of the same records."""
    mine = Part({}, {}, {2: QueuePart("queue 'q'", False, {"taken": 3}, np.array([10, 11]))})
    report = verdict([mine], {2: np.array([10]), 3: np.array([10])})
    return frozenset(finding.text for finding in report.findings)


@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__[1:])
def test_each_forged_log_is_found_out(forge: Callable[[Forger], None]) -> None:
    assert _found(forge), "nothing was found"


def test_every_check_fires() -> None:
    said = _found_by_counting().union(_found(two_holders, 2), *map(_found, FORGED))
    silent = [one for one in _all_sentences() if not any(re.search(one, text) for text in said)]
    assert not silent, "no forged log makes the audit say:\n" + "\n".join(silent)


@pytest.mark.parametrize("forge", [_narrowed_to_others, _narrowed_to_more])
def test_a_batch_is_narrowed_to_what_it_had(forge: Callable[[Forger], None]) -> None:
    (text,) = _found(forge)
    assert text == "stream 's': batch 1 was narrowed to messages that it did not have"


def test_what_is_left_of_a_narrowed_batch_is_gone_when_it_is_settled() -> None:
    assert _found(_narrowed_and_not_gone) == {"stream 's': messages of a settled batch still wait"}


def test_patterns_see_the_sentences() -> None:
    tree = ast.parse('def f():\n    find("a", x, f"queue {n} is")\n    text = "gone"\n    self._find("b", y, text)')
    assert Counter(_sentences(tree)) == Counter(["queue\\ .*\\ is", "gone"])
