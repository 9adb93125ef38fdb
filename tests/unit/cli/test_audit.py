"""The audit finds nothing in a log that a core wrote, and each broken promise in one that was forged."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from choices import spread
from penstock.cli.logfiles import audit
from penstock.core import audit_log as audit_module
from penstock.core.audit_controls import Row, SinkAudit
from penstock.core.audit_histories import NONE, Report
from penstock.core.broker import Core
from penstock.core.effects import Fetch, Fetched, Scan, Scanned, Verb
from penstock.core.state.durable import DurableState
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.writer import MEMORY
from penstock.records.chunks import Now, as_chunk, pack_pairs
from penstock.records.entries import Group, Publishes
from penstock.records.kinds import NO_ROUTE, Kind
from penstock.records.queue_settings import QueueSettings, Retry
from penstock.server.asking.scanning import matching
from penstock.testing import Broker
from penstock.testing.instance import Instance
from unit.cli.forging import PERSISTENT, T0, Forger, Still, back_without_a_lease, two_holders


@pytest.fixture(params=[400_000, 1], ids=["one window", "a window a batch"])
def forger(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Forger:
    monkeypatch.setattr(audit_module, "WINDOW", request.param)
    return Forger(tmp_path)


def names(report: Report) -> set[str]:
    return {finding.guarantee for finding in report.findings}


def test_a_good_life_has_no_findings(forger: Forger) -> None:
    f = forger
    f.grant(10, 20)
    f.about(Kind.SETTLE, 10, 15)
    f.give_back(15, 17)
    f.grant(15, 17, attempt=2)
    f.give_back(16, 17, not_before=T0 + 5)
    f.time = T0 + 9
    f.about(Kind.DUE, 16, 17, place=0)
    f.grant(16, 17, attempt=3)
    f.about(Kind.SETTLE, 15, 19)  # 15..18 live, and both ends are among them
    f.lsn += 1 << 32
    f.boot(clean=False)
    f.grant(19, 20, attempt=2)
    report = f.report()
    assert not report.findings
    assert report.counts["queue messages settled"] == 9
    assert report.counts["queue messages waiting"] == 1
    assert report.counts["starts after a crash"] == 1


def test_pairs_name_what_lives_between_living_ends(forger: Forger) -> None:
    forger.about(Kind.SETTLE, 14, 15)
    forger.grant(10, 20)  # 14 is gone and not meant
    forger.about(Kind.SETTLE, 10, 20)
    assert not forger.report().findings


def _settled_twice(f: Forger) -> set[int]:
    f.about(Kind.SETTLE, 12, 14)
    return {12, f.about(Kind.SETTLE, 12, 13)}


def _settled_twice_as_an_end(f: Forger) -> set[int]:
    f.about(Kind.SETTLE, 12, 13)
    return {12, f.about(Kind.SETTLE, 12, 15)}


def _dropped_after_it_expired(f: Forger) -> set[int]:
    f.about(Kind.EXPIRE, 12, 13, reason="time_limit")
    return {12, f.about(Kind.DROP, 12, 13, reason="maxlen")}


def _granted_after_the_end(f: Forger) -> set[int]:
    f.about(Kind.SETTLE, 19, 20)
    return {19, f.grant(19, 20)}


def _settled_before_it_came(f: Forger) -> set[int]:
    lsn = f.about(Kind.SETTLE, 30, 31)
    f.messages(10)
    return {30, lsn}


def _settled_what_is_no_message(f: Forger) -> set[int]:
    return {5, f.about(Kind.SETTLE, 5, 6)}


def _after_the_queue(f: Forger) -> set[int]:
    f.about(Kind.QUEUE_DELETE)
    return {f.about(Kind.SETTLE, 10, 11)}


def _of_a_queue_nobody_declared(f: Forger) -> set[int]:
    return {f.about(Kind.SETTLE, 10, 11, queue=7)}


@pytest.mark.parametrize(
    "forge",
    [
        _settled_twice, _settled_twice_as_an_end, _dropped_after_it_expired, _granted_after_the_end,
        _settled_before_it_came,
        _settled_what_is_no_message, _after_the_queue, _of_a_queue_nobody_declared,
    ],
)  # fmt: skip
def test_ends_once(forger: Forger, forge: Callable[[Forger], set[int]]) -> None:
    lsns = forge(forger)
    report = forger.report()
    assert "ends once" in names(report)
    assert lsns <= {lsn for finding in report.findings for lsn in finding.lsns}


def _back_after_the_process(f: Forger) -> None:
    f.grant(10, 12)
    f.lsn += 1 << 32
    f.boot(clean=False)
    f.give_back(10, 11)


@pytest.mark.parametrize("forge", [two_holders, back_without_a_lease, _back_after_the_process])
def test_one_holder(forger: Forger, forge: Callable[[Forger], None]) -> None:
    forge(forger)
    assert "one holder" in names(forger.report())


@pytest.mark.parametrize("attempts", [[2], [0], [1, 1], [1, 3]])
def test_attempts(forger: Forger, attempts: list[int]) -> None:
    for attempt in attempts:
        forger.grant(13, 14, attempt=attempt)
        forger.give_back(13, 14)
    report = forger.report()
    assert "attempts" in names(report)
    assert 13 in report.findings[0].lsns


def _granted_while_delayed(f: Forger) -> None:
    f.grant(10, 11)
    f.give_back(10, 11, not_before=T0 + 100)
    f.grant(10, 11, attempt=2)


def _granted_before_its_schedule(f: Forger) -> None:
    first = f.messages(1, not_before=T0 + 100)
    f.grant(first, first + 1)


def _due_too_soon(f: Forger) -> None:
    f.grant(10, 11)
    f.give_back(10, 11, not_before=T0 + 100)
    f.time = T0 + 99
    f.about(Kind.DUE, 10, 11, place=0)


def _due_without_delay(f: Forger) -> None:
    f.about(Kind.DUE, 10, 11, place=0)


@pytest.mark.parametrize(
    "forge", [_granted_while_delayed, _granted_before_its_schedule, _due_too_soon, _due_without_delay]
)
def test_delays(forger: Forger, forge: Callable[[Forger], None]) -> None:
    forge(forger)
    assert "delays" in names(forger.report())


def test_at_most_once(forger: Forger) -> None:
    settings = QueueSettings(semantics="at-most-once", fairness_model="round-robin", deliver="durable")
    queue = forger.declare("once", settings)
    forger.control(Kind.ROUTE, body=pack_pairs(queue, ()), route=1)
    first = forger.messages(5, route=1)
    forger.about(Kind.SETTLE, first, first + 3, queue=queue)
    forger.grant(first + 3, first + 4, queue=queue)
    report = forger.report()
    assert names(report) == {"at most once"}
    assert first + 3 in report.findings[0].lsns


def _letter(f: Forger, *, cause: int = 10, pairs: tuple[int, ...] = (10, 11), grouped: bool = True) -> None:
    letter = f.batch(1)
    body = pack_pairs(f.queue, pairs)
    expire = f.make(Kind.EXPIRE, "q", {"reason": "forced_expire", "dead": [[cause, letter.first]]}, body)
    f.entries += [Group([letter, expire])] if grouped else [letter, expire]


def test_a_dead_letter_in_one_group_is_fine(forger: Forger) -> None:
    _letter(forger)
    report = forger.report()
    assert not report.findings
    assert report.counts["dead letters"] == 1


def test_a_dead_letter_whose_cause_stayed(forger: Forger) -> None:
    _letter(forger, cause=12)
    assert names(forger.report()) == {"dead letters"}


def test_a_dead_letter_outside_the_group(tmp_path: Path) -> None:
    forger = Forger(tmp_path)
    letter = forger.messages(1)
    forger.entries += [forger.batch(200_000)]  # more rows than a batch takes
    forger.about(Kind.EXPIRE, 10, 11, reason="forced_expire", dead=[[10, letter]])
    assert names(forger.report()) == {"dead letters"}


@pytest.mark.parametrize("records", [1, 2])
def test_a_dead_letter_with_two_causes(forger: Forger, records: int) -> None:
    letter = forger.batch(1)
    dead = [[10, letter.first], [11, letter.first]]
    group = Group([letter])
    for some in [dead] if records == 1 else [[cause] for cause in dead]:
        header = {"reason": "forced_expire", "dead": some}
        pairs = [lsn for cause, _ in some for lsn in (cause, cause + 1)]
        group.entries.append(forger.make(Kind.EXPIRE, "q", header, pack_pairs(forger.queue, pairs)))
    forger.entries.append(group)
    assert names(forger.report()) == {"dead letters"}


def _transaction(f: Forger, *, grouped: bool = True) -> None:
    """A message and its transaction's record, in one batch or with so much between that they are in two."""
    message = f.batch(1)
    if not grouped:
        f.entries += [message, f.batch(200_000)]
        f.entries += [f.make(Kind.TRANSACTION, "", {"first": message.first, "rows": 1, "ended": 0}, b"")]
        return
    record = f.make(Kind.TRANSACTION, "", {"first": message.first, "rows": 1, "ended": 0}, b"")
    f.entries += [Group([message, record])]


def test_a_transaction_in_one_group_is_fine(forger: Forger) -> None:
    _transaction(forger)
    report = forger.report()
    assert not report.findings
    assert report.counts["transactions"] == 1


def test_a_transaction_outside_of_its_group(tmp_path: Path) -> None:
    forger = Forger(tmp_path)
    _transaction(forger, grouped=False)
    assert names(forger.report()) == {"transactions"}


def test_positions_with_a_hole(forger: Forger) -> None:
    forger.lsn += 3
    forger.messages(1)
    report = forger.report()
    assert names(report) == {"positions"}
    assert report.findings[0].lsns == [19, 23]


def test_a_start_after_a_crash_without_its_gap(forger: Forger) -> None:
    forger.lsn += 1000
    forger.boot(clean=False)
    assert names(forger.report()) == {"positions"}


def test_a_clean_start_with_a_gap(forger: Forger) -> None:
    forger.lsn += 1000
    forger.boot()
    assert names(forger.report()) == {"positions"}


def test_a_log_without_a_start(forger: Forger) -> None:
    del forger.entries[0]
    assert "positions" in names(forger.report())


def test_times_that_go_back(forger: Forger) -> None:
    forger.time = T0 - 1
    forger.messages(1)
    assert names(forger.report()) == {"times"}


def test_a_route_to_a_queue_that_is_gone(forger: Forger) -> None:
    forger.about(Kind.QUEUE_DELETE)
    forger.messages(2)
    report = forger.report()
    assert names(report) == {"routes"}
    assert report.findings[0].lsns == [21, 22]


def test_a_non_durable_queue_ends_with_the_process(forger: Forger) -> None:
    queue = forger.declare("volatile", durable=False)
    forger.control(Kind.ROUTE, body=pack_pairs(queue, ()), route=1)
    first = forger.messages(4, route=1)
    forger.boot()
    forger.messages(1, route=1)
    forger.about(Kind.SETTLE, first, first + 1, queue=queue)
    report = forger.report()
    assert names(report) == {"routes", "ends once"}
    assert report.counts["queue messages deleted with the queue"] == 4


def test_transient_messages_end_with_the_process(forger: Forger) -> None:
    first = forger.messages(4, transient=True)
    forger.about(Kind.SETTLE, first, first + 1)
    forger.boot()
    forger.about(Kind.SETTLE, first + 1, first + 2)
    report = forger.report()
    assert names(report) == {"ends once"}
    assert report.counts["queue messages ended with the process"] == 3


def _stream(f: Forger) -> None:
    f.control(Kind.STREAM, "s", {"queue": f.queue, "epoch": 1, "mode": "queue", "floor": 0})
    f.grant(10, 13)
    f.control(Kind.PLAN, "s", {"batch": 1, "epoch": 1, "queue": f.queue}, pack_pairs(f.queue, (10, 13)))


def test_a_stream_as_it_should_be(forger: Forger) -> None:
    _stream(forger)
    forger.lsn += 1 << 32
    forger.boot(clean=False)  # what is planned stays held
    done = forger.make(Kind.PLAN_SETTLE, "s", {"batch": 1})
    forger.entries.append(Group([done, forger.make(Kind.SETTLE, "q", {}, pack_pairs(forger.queue, (10, 13)))]))
    forger.control(Kind.STREAM_RELEASE, "s", {"batch": 1, "epoch": 2})
    report = forger.report()
    assert not report.findings
    assert report.counts["stream batches"] == 1


def test_a_batch_of_an_at_most_once_queue_went_before_it_was_planned() -> None:
    once = {"name": "q", "semantics": "at-most-once", "fairness_model": "round-robin", "deliver": "durable"}
    with Broker({"queue": [once]}) as broker:
        for number in range(3):
            broker.publish("q", str(number))

        def plan(instance: Instance) -> DurableState:
            core, now = instance.core, instance.engine.now()
            opened = core.streams.open(now, "s", core.queue("/", "q"))
            for done in range(2):
                assert core.streams.plan(now, "s", opened.epoch, done, 2).chunks
            instance.make_durable()
            return core.durable_state()

        state, found = broker.command(plan), audit_module.Audit()
        assert broker.instance is not None
        for rows in broker.instance.log.batches(0, state.last_lsn + 1):
            found.feed(rows)
    report = found.finish(state)
    assert not report.findings
    assert report.counts["stream batches"] == 2


def _overlapping(f: Forger) -> None:
    f.control(Kind.PLAN, "s", {"batch": 2, "epoch": 1, "queue": f.queue}, pack_pairs(f.queue, (12, 13)))


def _not_granted(f: Forger) -> None:
    f.control(Kind.PLAN, "s", {"batch": 2, "epoch": 1, "queue": f.queue}, pack_pairs(f.queue, (14, 15)))


def _a_number_left_out(f: Forger) -> None:
    f.grant(13, 14)
    f.control(Kind.PLAN, "s", {"batch": 3, "epoch": 1, "queue": f.queue}, pack_pairs(f.queue, (13, 14)))


def _an_old_epoch(f: Forger) -> None:
    f.control(Kind.STREAM, "s", {"queue": f.queue, "epoch": 2, "mode": "queue", "floor": 0})
    f.grant(13, 14)
    f.control(Kind.PLAN, "s", {"batch": 2, "epoch": 1, "queue": f.queue}, pack_pairs(f.queue, (13, 14)))


def _settled_and_still_there(f: Forger) -> None:
    f.control(Kind.PLAN_SETTLE, "s", {"batch": 1})


def _settled_again(f: Forger) -> None:
    for _ in range(2):
        done = f.make(Kind.PLAN_SETTLE, "s", {"batch": 1})
        f.entries.append(Group([done, f.make(Kind.SETTLE, "q", {}, pack_pairs(f.queue, (10, 13)))]))


def _settled_beyond_the_plan(f: Forger) -> None:
    f.control(Kind.PLAN_SETTLE, "s", {"batch": 5})


@pytest.mark.parametrize(
    "forge",
    [
        _overlapping, _not_granted, _a_number_left_out, _an_old_epoch, _settled_and_still_there, _settled_again,
        _settled_beyond_the_plan,
    ],
)  # fmt: skip
def test_stream_batches(forger: Forger, forge: Callable[[Forger], None]) -> None:
    _stream(forger)
    forge(forger)
    assert "stream batches" in names(forger.report())


def test_a_sink_commits_once(forger: Forger) -> None:
    for batch in (0, 1, 1):
        forger.control(Kind.SINK_COMMIT, "query", {"batch": batch, "rows": 0})
    assert names(forger.report()) == {"sinks"}


def _decide(f: Forger, batch: int, rows: int) -> None:
    f.control(Kind.DECIDED, "query", {"batch": batch, "parts": [["a", rows, 9, 7, "q", "", "/"]]})


def _chunk(f: Forger, batch: int, chunk: int, rows: int) -> None:
    f.control(Kind.CHUNK, "query", {"batch": batch, "chunk": chunk, "rows": rows})


def test_chunks_that_follow_their_decision(forger: Forger) -> None:
    _decide(forger, 0, 5)
    _chunk(forger, 0, 1, 2)
    _chunk(forger, 0, 2, 5)
    forger.control(Kind.SINK_COMMIT, "query", {"batch": 1, "rows": 0})
    _decide(forger, 2, 5)
    _chunk(forger, 2, 1, 4)
    report = forger.report()
    assert names(report) == set()
    assert report.counts["sink batches"] == 3


def _row(kind: Kind, header: dict[str, object]) -> Row:
    return Row(kind, 0, 1, T0, "query", NO_ROUTE, header, NONE)


@pytest.mark.parametrize(
    "chunks", [[(0, 1, 2), (0, 1, 4)], [(0, 2, 2)], [(1, 1, 2)], [(0, 1, 5), (0, 2, 6)], [(0, 1, 3), (0, 2, 3)]]
)
def test_chunks_that_do_not(chunks: list[tuple[int, int, int]]) -> None:
    found = list[str]()
    sinks = SinkAudit(lambda guarantee, lsns, text: found.append(guarantee))
    sinks.record(_row(Kind.DECIDED, {"batch": 0, "parts": [["a", 5, 9, 7, "q", "", "/"]]}))
    for batch, chunk, rows in chunks:
        sinks.record(_row(Kind.CHUNK, {"batch": batch, "chunk": chunk, "rows": rows}))
    assert found == ["sinks"]


def test_a_batch_waits_for_the_chunks_of_the_one_before(forger: Forger) -> None:
    _decide(forger, 0, 5)
    forger.control(Kind.SINK_COMMIT, "query", {"batch": 1, "rows": 0})
    assert names(forger.report()) == {"sinks"}


def test_publisher_sequences(forger: Forger) -> None:
    for last in (5, 9, 9):
        forger.control(Kind.PUBLISHERS, "", {"me": last})
    assert names(forger.report()) == {"publishers"}


def test_a_publisher_that_was_forgotten_begins_anew(forger: Forger) -> None:
    forger.control(Kind.PUBLISHERS, "", {"me": 9})
    forger.control(Kind.PUBLISHERS_GONE, "", {"publishers": ["me", "nobody"]})
    forger.control(Kind.PUBLISHERS, "", {"me": 1})
    assert names(forger.report()) == set()


def test_the_command_says_so(forger: Forger) -> None:
    from penstock.cli.main import command as built

    forger.about(Kind.SETTLE, 12, 13)
    forger.about(Kind.SETTLE, 12, 13)
    forger.report()
    result = CliRunner().invoke(built(None), ["audit", "--data", str(forger.folder), "--json"])
    assert result.exit_code == 1
    findings = json.loads(result.stdout)["findings"]
    assert findings[0]["guarantee"] == "ends once"
    assert 12 in findings[0]["lsns"]


@pytest.mark.parametrize("seed", spread(range(4), 2))
def test_what_a_core_writes_is_found_right(tmp_path: Path, seed: int) -> None:
    """Random life of several queues, with crashes: no findings, from no base on, and the fold agrees."""
    rnd = random.Random(seed)
    wall = T0
    log = Log.open(OsDisk(tmp_path), Still(), replace(MEMORY, origin=7))
    for _ in log.replay():
        pass
    core = Core(7)
    core.boot(Now(wall, wall), clean=True, next_lsn=1)

    def turn() -> None:
        while True:
            effects = core.take_effects()
            log.append(core.take_journal())
            log.flush()
            asked = [effect for effect in effects if isinstance(effect, Fetch | Scan)]
            if not asked:
                return
            for effect in asked:
                rows = log.read(effect.chunk)
                if isinstance(effect, Fetch):
                    core.answered(Now(wall, wall), Fetched(effect.token, rows, effect.chunk[-1]))
                else:
                    found = matching(effect.filters, rows)
                    core.answered(Now(wall, wall), Scanned(effect.token, found, effect.chunk[-1]))

    kinds = {
        "plain": QueueSettings(lease_period=40),
        "dead": QueueSettings(),
        "retry": QueueSettings(
            retry=Retry(initial=30, max=100, attempts=3), dead_letter_exchange="", dead_letter_routing_key="dead"
        ),
        "once": QueueSettings(semantics="at-most-once", fairness_model="round-robin", deliver="durable"),
        "short": QueueSettings(message_ttl=60, dead_letter_exchange="", dead_letter_routing_key="dead"),
    }
    for name, settings in kinds.items():
        core.declare_queue(Now(wall, wall), "/", name, settings)
    consumers, bases = [], list[DurableState]()
    for step in range(300):
        if step % 23 == 0:
            bases.append(core.durable_state())
        wall += rnd.randrange(15)
        now = Now(wall, wall)
        what = rnd.random()
        if what < 0.35:
            n = rnd.randrange(1, 30)
            topic = core.topic("/", "", rnd.choice(list(kinds)))
            core.publish(now, Publishes(topic, rnd.choice((PERSISTENT, b"\x10\0\x01")), [b"%d" % step] * n))
        elif what < 0.5:
            queue = core.queue("/", rnd.choice(list(kinds)))
            consumers.append(
                core.subscribe(now, queue, tag=f"c{step}", holder=object(), max_backlog=rnd.choice((1, 5, None)))
            )
        elif what < 0.85 and consumers:
            consumer = rnd.choice(consumers)
            held = [lsn for run in consumer.leases.held() for lsn in run.chunk]
            some = sorted(rnd.sample(held, rnd.randrange(len(held) + 1)))
            if some:
                verb = rnd.choice((Verb.ACK, Verb.ACK, Verb.CANCEL, Verb.RELEASE, Verb.EXPIRE))
                core.settle(now, consumer.queue, [as_chunk(some)], verb, by=consumer)
        elif what < 0.92 and consumers:
            core.unsubscribe(now, consumers.pop(rnd.randrange(len(consumers))), requeue=True, lost=rnd.random() < 0.5)
        elif what < 0.94:
            core.purge_queue(now, core.queue("/", rnd.choice(list(kinds))))
        elif what < 0.96:
            turn()
            state = core.durable_state()
            clean = rnd.random() < 0.5
            core = Core.restore(state, origin=7, now=now)
            core.boot(now, clean=clean, next_lsn=state.last_lsn + (1 if clean else 1 << 32))
            consumers = []
        else:
            core.tick(now)
        turn()
    for base in bases:  # what came before one is not looked at
        auditor = audit_module.Audit(base)
        for batch in log.batches(0, 1 << 60):
            auditor.feed(batch)
        assert not (report := auditor.finish()).findings, f"from LSN {base.last_lsn + 1}: {report.findings[:5]}"
    log.close()
    report = audit(tmp_path)
    assert not report.findings, report.findings[:5]
    assert report.counts["queue messages taken"] > 500


def test_a_log_whose_beginning_is_gone_is_audited_from_its_base(tmp_path: Path) -> None:
    settings = replace(MEMORY, origin=7, segment=20_000)
    log = Log.open(OsDisk(tmp_path), Still(), settings)
    assert [*log.replay()] == []
    now = Now(T0, 1)
    core = Core(7)
    core.boot(now, clean=True, next_lsn=1)
    queue = core.declare_queue(now, "/", "q", QueueSettings(retry=Retry(initial=1000, jitter=0)))
    consumer = core.subscribe(now, queue, tag="c", holder=object(), max_backlog=10)
    for number in range(40):
        core.publish(now, Publishes(core.topic("/", "", "q"), PERSISTENT, [b"x" * 1000] * 2))
        held = [run.chunk[:1] for run in consumer.leases.held()]
        core.settle(now, queue, held[:1], Verb.ACK if number % 3 else Verb.CANCEL, by=consumer)
        log.append(core.take_journal())
        log.flush()
    state = core.durable_state()
    log.append([log.base_group(core.next_lsn, T0, core.next_lsn, state.encode())])
    log.flush()
    assert log.retire(core.next_lsn)
    log.close()

    log = Log.open(OsDisk(tmp_path), Still(), settings)
    start = log.base_state()
    assert start is not None
    for _ in log.replay():
        pass
    core = Core.restore(DurableState.decode(start[1]), origin=7, now=now)
    core.boot(now, clean=True, next_lsn=log.recovery.next_lsn)
    queue = core.queue("/", "q")
    consumer = core.subscribe(now, queue, tag="c", holder=object())
    core.settle(now, queue, [run.chunk for run in consumer.leases.held()], Verb.ACK, by=consumer)
    core.tick(Now(T0 + 2000, 2000))
    log.append(core.take_journal())
    log.flush()
    log.close()
    report = audit(tmp_path)
    assert report.findings == []
    assert report.counts["audited from LSN"] == start[0]
    assert report.counts["queue messages settled"] > 10
    assert report.counts["starts"] == 1
