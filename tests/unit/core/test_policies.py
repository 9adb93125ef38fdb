"""Policies, operator policies and address settings: who rules, what wins, and that all of it is undone and survives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.config.queue_arguments import queue_settings, read_policy, why_impossible
from penstock.core.audit_log import Audit
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import DurableState, canonical
from penstock.core.state.encoding import dump, dump_settings
from penstock.core.state.fold import Fold
from penstock.core.topology import ruling
from penstock.core.topology.ruling import Policies
from penstock.errors import ExpressionError, NotFound, PreconditionFailed
from penstock.records.chunks import pack_pairs
from penstock.records.entries import Control, Entry, Group
from penstock.records.kinds import Kind
from penstock.records.queue_settings import AddressSetting, Policy, QueueSettings, Retry
from penstock.records.regular_expressions import Compiled
from unit.core.world import START, World, to_table

MS = 1000


def policy(name: str, pattern: str = "", /, operator: bool = False, priority: int = 0, apply_to: str = "all",
           **definition: object) -> Policy:  # fmt: skip
    values = {key.replace("_", "-"): value for key, value in definition.items()}
    return read_policy("/", name, pattern, values, priority=priority, apply_to=apply_to, operator=operator)


class Ruled(World):
    """A world whose fold is looked at after each change."""

    def put(self, *policies: Policy) -> None:
        for one in policies:
            self.core.set_policy(self.now, one)
        self.turn()
        self.same()

    def drop(self, name: str, *, operator: bool = False) -> None:
        self.core.delete_policy(self.now, "/", name, operator=operator)
        self.turn()
        self.same()

    def addresses(self, *settings: AddressSetting) -> None:
        self.core.rule_by_file(self.now, (), settings)
        self.turn()
        self.same()

    def same(self) -> None:
        live = canonical(self.core.durable_state())
        assert self.folded() == live
        assert DurableState.decode(live.encode()) == live


@pytest.fixture
def world() -> Ruled:
    return Ruled()


def address(pattern: str, *, literal: bool = False, **values: object) -> AddressSetting:
    return AddressSetting("/", pattern, values, literal)


# -- which policy rules


def test_the_pattern_is_found_anywhere_in_the_name(world: Ruled) -> None:
    inside, apart = world.declare("a.jobs.b"), world.declare("a.job.b")
    world.put(policy("p", "jobs", message_ttl=5))
    assert inside.settings.message_ttl == 5 * MS
    assert apart.settings.message_ttl is None


def test_a_change_reads_its_own_pattern_alone(world: Ruled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are more than whoever compiles them remembers."""
    read, compiled = list[str](), ruling.compile_pattern

    def counted(pattern: str) -> Compiled:
        read.append(pattern)
        return compiled(pattern)

    monkeypatch.setattr(ruling, "compile_pattern", counted)
    world.put(*(policy(f"p{n}", f"^z{n}$", max_length=n) for n in range(20)))
    queue = world.declare("q")
    read.clear()
    world.put(policy("last", "^q$", max_length=3))
    assert queue.settings.max_length == 3
    world.put(policy("last", "^r$", max_length=3))
    assert queue.settings.max_length is None
    world.drop("last")
    assert set(read) == {"^q$", "^r$"}


def test_exactly_one_policy_rules_and_it_is_the_one_with_the_highest_priority(world: Ruled) -> None:
    queue = world.declare("q")
    world.put(policy("low", message_ttl=5, priority=1), policy("high", delivery_limit=3, priority=2))
    assert (queue.settings.message_ttl, queue.settings.delivery_limit) == (None, 3)
    assert world.core.policy_facts(queue)["policy"] == "high"


def test_of_equal_priorities_the_name_that_comes_first_rules(world: Ruled) -> None:
    queue = world.declare("q")
    world.put(policy("b", message_ttl=5), policy("a", message_ttl=9))
    assert queue.settings.message_ttl == 9 * MS


def test_a_policy_of_which_no_key_is_for_queues_leaves_them_to_the_next(world: Ruled) -> None:
    queue = world.declare("q")
    world.put(policy("x", alternate_exchange="amq.fanout", priority=9), policy("y", message_ttl=5))
    assert world.core.policy_facts(queue)["policy"] == "y"


def test_keys_of_quorum_queues_alone_hide_no_other_policy_and_are_merged_to_the_smaller(world: Ruled) -> None:
    queue = world.declare("q")
    world.put(policy("quorum", max_in_memory_length=5, dead_letter_strategy="at-least-once", priority=9))
    world.put(policy("y", message_ttl=5, max_in_memory_length=3, target_group_size=1))
    assert world.core.policy_facts(queue)["policy"] == "y"
    world.put(policy("o", operator=True, message_ttl=9, max_in_memory_length=7, target_group_size=5))
    assert world.core.effective_policy_definition(queue) == {
        "message-ttl": 5, "max-in-memory-length": 3, "target-group-size": 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("apply_to", "ruled"),
    [("all", True), ("queues", True), ("classic_queues", True), ("quorum_queues", False), ("streams", False),
     ("exchanges", False)],
)  # fmt: skip
def test_apply_to(world: Ruled, apply_to: str, ruled: bool) -> None:
    queue = world.declare("q")
    world.put(policy("p", message_ttl=5, apply_to=apply_to))
    assert (queue.settings.message_ttl == 5 * MS) is ruled


def test_a_policy_rules_its_own_vhost_alone(world: Ruled) -> None:
    queue = world.declare("q", vhost="other")
    world.put(policy("p", message_ttl=5))
    assert queue.settings.message_ttl is None


def test_a_queue_declared_later_is_ruled_at_once_and_in_one_record(world: Ruled) -> None:
    world.put(policy("p", message_ttl=5))
    before = world.core.next_lsn
    queue = world.declare("q")
    assert queue.settings.message_ttl == 5 * MS
    assert world.core.next_lsn == before + 1
    world.same()


# -- what wins


@pytest.mark.parametrize("key", ["message_ttl", "queue_expires", "max_length", "max_length_bytes"])
@pytest.mark.parametrize(("argument", "said", "wins"), [(5, 8, 5), (8, 5, 5), (5, 5, 5)])
def test_of_an_argument_and_a_policy_the_smaller_limit_wins(
    world: Ruled, key: str, argument: int, said: int, wins: int
) -> None:
    unit = 1 if key.startswith("max") else MS
    queue = world.declare("q", **{key: argument * unit})
    world.put(policy("p", **{key: said}))
    assert getattr(queue.settings, key) == wins * unit
    assert world.core.sources(queue)[key] == ("policy p" if said < argument else "argument")


def test_of_delivery_limits_the_smaller_wins_and_below_zero_there_is_none(world: Ruled) -> None:
    queue = world.declare("q", delivery_limit=4)
    world.put(policy("p", delivery_limit=-7))
    assert queue.settings.delivery_limit == 4
    world.put(policy("p", delivery_limit=2))
    assert queue.settings.delivery_limit == 2


def test_of_targets_of_dead_letters_the_argument_wins(world: Ruled) -> None:
    queue = world.declare("q", dead_letter_exchange="mine")
    world.put(policy("p", dead_letter_exchange="theirs", dead_letter_routing_key="key"))
    assert (queue.settings.dead_letter_exchange, queue.settings.dead_letter_routing_key) == ("mine", "key")


def test_operator_and_policy_are_merged_key_by_key(world: Ruled) -> None:
    queue = world.declare("q")
    world.put(
        policy("p", message_ttl=50, dead_letter_exchange="dlx"),
        policy("o", operator=True, message_ttl=20, delivery_limit=3),
    )
    assert world.core.effective_policy_definition(queue) == {
        "message-ttl": 20, "dead-letter-exchange": "dlx", "delivery-limit": 3,
    }  # fmt: skip
    assert queue.settings.message_ttl == 20 * MS
    sources = world.core.sources(queue)
    assert (sources["message_ttl"], sources["dead_letter_exchange"]) == ("operator policy o", "policy p")
    assert sources["lease_period"] == "default"
    world.put(policy("o", operator=True, message_ttl=90))
    assert queue.settings.message_ttl == 50 * MS
    assert queue.settings.delivery_limit == -1  # a key that is absent from the new policy is off again


def test_an_operators_unlimited_deliveries_do_not_lift_a_policys_limit(world: Ruled) -> None:
    queue = world.declare("q")
    world.put(policy("p", delivery_limit=5), policy("o", operator=True, delivery_limit=-1))
    assert queue.settings.delivery_limit == 5
    assert world.core.effective_policy_definition(queue) == {"delivery-limit": 5}


# -- undone, and kept


def test_deleting_the_policy_undoes_it_also_after_a_restart(world: Ruled) -> None:
    world.declare("q", message_ttl=9 * MS)
    world.put(policy("p", message_ttl=5, delivery_limit=2))
    world.restart(clean=False)
    queue = world.core.queue("/", "q")
    assert (queue.settings.message_ttl, queue.settings.delivery_limit) == (5 * MS, 2)
    world.drop("p")
    assert queue.settings == QueueSettings(message_ttl=9 * MS)
    assert queue.ruling is None
    with pytest.raises(NotFound, match="no policy 'p' in vhost '/'"):
        world.drop("p")


def test_what_a_policy_changes_lies_in_one_group_with_it(world: Ruled) -> None:
    world.declare("a")
    world.declare("b")
    world.core.set_policy(world.now, policy("p", message_ttl=5))
    assert len(world.core.journal) == 1


def test_altering_changes_a_queues_own_settings_and_those_in_force_follow(world: Ruled) -> None:
    queue = world.declare("q")
    world.put(policy("p", message_ttl=5))
    world.core.alter_queue(world.now, queue, QueueSettings(message_ttl=3 * MS, lease_period=7))
    world.turn()
    assert (queue.settings.message_ttl, queue.settings.lease_period) == (3 * MS, 7)
    world.core.alter_queue(world.now, queue, QueueSettings(lease_period=7))
    world.turn()
    assert queue.settings.message_ttl == 5 * MS
    world.drop("p")
    assert queue.settings == QueueSettings(lease_period=7)


def test_a_redeclare_compares_arguments_whatever_policies_made_of_the_queue(world: Ruled) -> None:
    queue = world.declare("q", arguments={"x-message-ttl": 9}, message_ttl=9 * MS)
    world.put(policy("p", message_ttl=5))
    assert world.declare("q", arguments={"x-message-ttl": 9}, message_ttl=9 * MS) is queue


def test_a_key_that_cannot_be_beside_the_others_is_not_applied_and_said(world: Ruled) -> None:
    plain, full = world.declare("plain"), world.declare("full", dead_letter_exchange="x")
    world.put(policy("p", dead_letter_routing_key="k", message_ttl=5))
    assert plain.settings == QueueSettings(message_ttl=5 * MS)
    assert full.settings.dead_letter_routing_key == "k"
    unapplied = world.core.policy_facts(plain)["policy_unapplied"]
    assert isinstance(unapplied, dict)
    assert "policy p" in unapplied["dead_letter_routing_key"]


def test_what_needs_another_beside_it_is_applied_with_it(world: Ruled) -> None:
    queue = world.declare("q", barrier_expression="/x = 1")
    world.put(policy("p", target_queue_depth=2000, dead_letter_routing_key="k", dead_letter_exchange="x"))
    assert why_impossible(QueueSettings(barrier_expression="/x = 1", target_queue_depth=2000))
    settings = queue.settings
    assert (settings.dead_letter_exchange, settings.dead_letter_routing_key) == ("x", "k")


def test_an_expression_that_cannot_be_read_is_refused_with_the_policy(world: Ruled) -> None:
    for key in ("filter", "group-key", "priority-expression"):
        wrong = read_policy("/", "p", "", {key: "/a +"})
        with pytest.raises(
            ExpressionError, match=f"{key.replace('-', '_')} of policy 'p' in vhost '/': the expression"
        ):
            world.core.set_policy(world.now, wrong)
    assert not world.core.policies()


# -- exchanges


def test_an_alternate_exchange_comes_from_the_policy_unless_the_exchange_has_its_own(world: Ruled) -> None:
    world.core.declare_exchange(world.now, "/", "x", "fanout")
    world.core.declare_exchange(world.now, "/", "y", "fanout", arguments={"alternate-exchange": "amq.direct"})
    queue = world.declare("q")
    world.core.bind(world.now, "/", "amq.topic", "q", "queue", "#")
    world.put(policy("p", "^[xyz]$", alternate_exchange="amq.topic"))
    world.core.declare_exchange(world.now, "/", "z", "fanout")
    world.turn()
    world.same()
    for exchange in ("x", "y", "z"):
        world.publish("k", exchange=exchange)
    assert queue.ready == 2
    world.restart(clean=True)
    world.publish("k", exchange="x")
    assert world.core.queue("/", "q").ready == 3
    world.drop("p")
    world.publish("k", exchange="x")
    assert world.core.queue("/", "q").ready == 3


def test_a_predeclared_exchange_may_have_a_policy_and_the_default_one_has_none(world: Ruled) -> None:
    queue = world.declare("q")
    world.core.bind(world.now, "/", "amq.topic", "q", "queue", "#")
    world.put(policy("p", "", alternate_exchange="amq.topic"))
    world.publish("k", exchange="amq.fanout")
    assert queue.ready == 1
    world.publish("nobody")
    assert queue.ready == 1


# -- address settings


def deliveries(queue: Queue) -> int:
    return queue.settings.max_deliveries


def test_all_address_settings_that_match_are_merged_the_closest_first(world: Ruled) -> None:
    queue = world.declare("a.b.c")
    world.addresses(
        address("#", max_delivery_attempts=9, redelivery_delay=5_000_000, dead_letter_address="DLQ"),
        address("a.#", max_delivery_attempts=7, redelivery_delay_multiplier=2.0),
        address("a.*.c", max_delivery_attempts=3),
    )
    assert queue.settings == QueueSettings(
        max_deliveries=3, dead_letter_exchange="", dead_letter_routing_key="DLQ", expiry_address="",
        retry=Retry(5_000_000, 2.0, 50_000_000, 0.0, 0),
    )  # fmt: skip
    sources = world.core.sources(queue)
    assert sources["max_deliveries"] == "address a.*.c"
    assert sources["retry"] == sources["dead_letter_routing_key"] == "address #"
    world.addresses()
    assert queue.settings == QueueSettings()


@pytest.mark.parametrize(
    ("patterns", "name"),
    [
        (("foo.0", "foo.*", "foo.0.#"), "foo.0"),
        (("a.*.*.d", "a.b.#"), "a.b.c.d"),
        (("a.b.*", "a.*.c"), "a.b.c"),
        (("a.b.#", "a.#", "#"), "a.b"),
        (("a.#", "#"), "a"),
        (("*", "#"), "a"),
    ],
)
def test_the_closest_address_setting_wins(world: Ruled, patterns: tuple[str, ...], name: str) -> None:
    queue = world.declare(name)
    settings = [address(pattern, max_delivery_attempts=i + 1) for i, pattern in enumerate(patterns)]
    world.addresses(*reversed(settings))
    for i in range(len(settings)):
        assert deliveries(queue) == i + 1
        world.addresses(*settings[i + 1 :])
    assert deliveries(queue) == 0


def test_a_literal_is_a_name_whatever_is_in_it(world: Ruled) -> None:
    star, other = world.declare("a.#"), world.declare("a.b")
    world.addresses(address("a.#", literal=True, max_delivery_attempts=2), address("a.*", max_delivery_attempts=5))
    assert (deliveries(star), deliveries(other)) == (2, 5)


def test_an_explicit_value_and_a_policy_win_over_an_address_setting(world: Ruled) -> None:
    own, ruled = world.declare("own", max_deliveries=8), world.declare("ruled")
    world.put(policy("p", "ruled", max_deliveries=6))
    world.core.rule_by_file(world.now, (), [address("#", max_delivery_attempts=2)])
    world.turn()
    world.same()
    assert (deliveries(own), deliveries(ruled)) == (8, 6)


def test_the_file_takes_back_what_it_no_longer_says_and_leaves_what_was_set_by_command(world: Ruled) -> None:
    queue = world.declare("q")
    mine = read_policy("/", "filed", "", {"message-ttl": 5}, origin="file")
    world.core.rule_by_file(world.now, [mine], ())
    world.put(policy("by hand", delivery_limit=1, priority=-1))
    assert queue.settings.message_ttl == 5 * MS
    world.core.rule_by_file(world.now, (), ())
    world.turn()
    assert (queue.settings.message_ttl, queue.settings.delivery_limit) == (None, 1)


# -- history


def test_a_fold_matches_nothing_so_other_rules_of_matching_never_change_what_the_log_says(
    world: Ruled, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare("q")
    world.put(policy("p", "q", message_ttl=5, alternate_exchange="amq.fanout"))
    world.addresses(address("#", max_delivery_attempts=3))
    world.declare("q2")
    before = world.folded()

    def refuse(*_: object) -> None:
        raise AssertionError("the fold asked who rules")

    monkeypatch.setattr(Policies, "rule", refuse)
    monkeypatch.setattr(Policies, "of_exchange", refuse)
    assert world.folded(1) == before
    assert before.queues[min(before.queues)].settings.message_ttl == 5 * MS


def test_a_log_of_before_there_were_policies_is_read_as_it_was(world: Ruled) -> None:
    queue = world.declare("q", lease_period=7)
    header = {"settings": dump_settings(QueueSettings(lease_period=9))}
    world.core.take_journal()
    old = [Control(Kind.QUEUE_ALTER, "q", dump(header), pack_pairs(queue.id, ()), 50, START)]
    fold = Fold()
    for table in (*world.tables, to_table(old)):
        fold.feed(table)
    state = fold.finish().queues[queue.id]
    assert (state.settings.lease_period, state.ruling) == (9, None)


def audited(world: World, without: Kind | None = None) -> list[tuple[str, str]]:
    audit = Audit()
    for entry in world.entries:
        if without is None or not isinstance(entry, Control) or entry.kind != without:
            for batch in to_table([entry]).to_batches():
                audit.feed(batch)
    return [(one.guarantee, one.text) for one in audit.finish().findings if one.guarantee == "policies"]


def test_the_audit_finds_a_queue_that_a_policy_rules_which_is_not_there(world: Ruled) -> None:
    world.declare("q")
    world.put(policy("p", "q", message_ttl=5), policy("o", "q", operator=True, message_ttl=4))
    assert audited(world) == []
    assert audited(world, without=Kind.POLICY) == [
        ("policies", "queue 'q' in vhost '/' is ruled by policy 'p', which is not there"),
        ("policies", "queue 'q' in vhost '/' is ruled by operator policy 'o', which is not there"),
    ]
    world.drop("p")
    world.drop("o", operator=True)
    assert audited(world) == []


# -- what cannot change while there are messages


@pytest.mark.parametrize(
    ("definition", "name", "value"),
    [
        ({"last_value_key": "/id"}, "last_value_key", "/id"),
        ({"unique": True, "dedup_key": "/id"}, "unique", True),
    ],
)
def test_what_cannot_change_while_a_queue_has_messages_waits_and_says_so(
    world: Ruled, definition: dict[str, object], name: str, value: object
) -> None:
    full, empty = world.declare("full"), world.declare("empty")
    world.publish("full", b'{"id": 1}')
    before = getattr(full.settings, name)
    world.put(policy("p", max_length=5, **definition))
    assert (getattr(empty.settings, name), empty.settings.max_length) == (value, 5)
    assert (getattr(full.settings, name), full.settings.max_length) == (before, 5)
    assert "cannot change while it has messages" in dict(full.ruling.unapplied if full.ruling else ())[name]
    world.core.alter_queue(world.now, full, QueueSettings(max_length=3))
    world.turn()
    assert full.settings.max_length == 3
    world.restart(clean=True)
    full = world.core.queue("/", "full")
    assert getattr(full.settings, name) == before
    world.core.purge_queue(world.now, full)
    world.turn()
    world.restart(clean=True)
    full = world.core.queue("/", "full")
    assert getattr(full.settings, name) == value
    world.publish("full", b'{"id": 1}')
    world.core.delete_policy(world.now, "/", "p")
    world.turn()
    assert getattr(full.settings, name) == value
    assert getattr(world.core.queue("/", "empty").settings, name) == before
    world.same()


# -- of many queues, in portions


@pytest.fixture
def portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.commands.topology.AT_ONCE", 4)


def lengths(world: World) -> list[int | None]:
    return [world.core.queue("/", f"q{number}").settings.max_length for number in range(18)]


def alterations(entries: list[Entry]) -> int:
    flat = [one for entry in entries for one in (entry.entries if isinstance(entry, Group) else [entry])]
    return sum(isinstance(one, Control) and one.kind is Kind.QUEUE_ALTER for one in flat)


@pytest.mark.usefixtures("portions")
def test_a_change_of_many_queues_goes_a_portion_a_step(world: Ruled) -> None:
    for number in range(18):
        world.declare(f"q{number}")
    world.core.set_policy(world.now, policy("p", max_length=5))
    steps = [alterations(world.core.journal)]
    world.turn()
    while world.core.next_deadline()[0] == 0:
        world.core.tick(world.now)
        steps.append(alterations(world.core.journal))
        world.turn()
    assert steps == [4, 4, 4, 4, 2, 0]
    assert lengths(world) == [5] * 18
    world.same()


@pytest.mark.usefixtures("portions")
def test_a_queue_that_somebody_uses_is_ruled_before_its_turn(world: Ruled) -> None:
    for number in range(18):
        world.declare(f"q{number}")
    world.publish("q17", b"1", b"2")
    world.core.set_policy(world.now, policy("p", max_length=1))
    world.publish("q17", b"3", b"4")
    world.subscribe(world.core.queue("/", "q16"))
    assert lengths(world) == [1] * 4 + [None] * 12 + [1, 1]
    assert world.contents(world.core.queue("/", "q17")) == [b"4"]
    world.core.set_policy(world.now, policy("p", max_length=2))
    world.core.delete_queue(world.now, world.core.queue("/", "q9"))
    world.declare("q9")
    world.advance(1)
    assert lengths(world) == [2] * 18
    world.same()


@pytest.mark.usefixtures("portions")
@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("delete", [False, True])
def test_a_start_goes_on_where_a_crash_stopped(world: Ruled, steps: int, delete: bool) -> None:
    for number in range(18):
        world.declare(f"q{number}")
    if delete:
        world.core.set_policy(world.now, policy("p", max_length=5))
        world.advance(1)
        world.core.delete_policy(world.now, "/", "p")
    else:
        world.core.set_policy(world.now, policy("p", max_length=5))
    for _ in range(steps):
        world.turn()
        world.core.tick(world.now)
    world.turn()
    assert audited(world) == []
    world.restart(clean=False)
    world.turn()
    world.advance(1)
    assert lengths(world) == [None if delete else 5] * 18


def test_of_many_queues_those_alone_are_worked_out_that_a_change_is_about(
    world: Ruled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.commands.topology.LOOKS", 10)
    for number in range(40):
        world.declare(f"q{number}", vhost="/" if number % 2 else "other")
    worked_out, rule = set[str](), Policies.rule

    def noted(self: Policies, vhost: str, name: str, *rest: object) -> object:
        worked_out.add(name)
        return rule(self, vhost, name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Policies, "rule", noted)

    def changed(work: Callable[[], object]) -> str:
        worked_out.clear()
        work()
        while world.core.next_deadline()[0] == 0:
            world.core.tick(world.now)
        world.turn()
        world.same()
        return " ".join(sorted(worked_out))

    core, now = world.core, world.now
    assert changed(lambda: core.rule_by_file(now, (), [address("q3", max_delivery_attempts=3)])) == "q3"
    assert changed(lambda: core.set_policy(now, policy("p", "^q1", max_length=5))) == "q1 q11 q13 q15 q17 q19"
    both = changed(lambda: core.set_policy(now, policy("p", "^q2", max_length=6)))
    assert both == "q1 q11 q13 q15 q17 q19 q21 q23 q25 q27 q29", "those that it ruled before, too"
    assert changed(lambda: core.rule_by_file(now, (), [address("q5", max_delivery_attempts=3)])) == "q3 q5"
    assert changed(lambda: core.delete_policy(now, "/", "p")) == "q21 q23 q25 q27 q29"


def test_a_queue_that_lacks_what_its_policies_say_is_worked_out_at_every_change(world: Ruled) -> None:
    queue = world.declare("q")
    world.put(policy("p", "q", dead_letter_routing_key="k"))
    assert world.core.policy_facts(queue)["policy_unapplied"] != {}
    assert queue.ruling is not None
    queue.ruling = replace(queue.ruling, unapplied=(("dead_letter_routing_key", "for another reason"),))
    world.core.set_policy(world.now, policy("other", "nothing", max_length=5))
    assert "another reason" not in str(world.core.policy_facts(queue)["policy_unapplied"])


def test_the_limit_of_a_type_gives_way_to_whoever_says_one(world: Ruled) -> None:
    quorum = queue_settings({"x-queue-type": "quorum"}, "q")
    queue = world.core.declare_queue(world.now, "/", "q", quorum, durable=True, given={"queue_type"})
    assert (queue.settings.delivery_limit, world.core.sources(queue)["delivery_limit"]) == (20, "type quorum")
    for limit in (100, 3):
        world.put(policy("p", "q", apply_to="quorum_queues", delivery_limit=limit))
        assert (queue.settings.delivery_limit, world.core.sources(queue)["delivery_limit"]) == (limit, "policy p")
    world.put(policy("p", "q", apply_to="classic_queues", delivery_limit=3))
    assert queue.settings.delivery_limit == 20


def test_a_type_stays(world: Ruled) -> None:
    queue = world.declare("q")
    with pytest.raises(PreconditionFailed, match="queue 'q' in vhost '/' is classic: a type comes with the declare"):
        world.core.alter_queue(world.now, queue, QueueSettings(queue_type="quorum"))
