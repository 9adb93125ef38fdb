"""Where a message of a queue is, and why it, or nothing of the queue, is delivered now: words and sentences.

Each reason is a word for programs and a sentence for people.  Looking changes nothing; moments are told in UTC.
`QUEUE_REASONS` is a list of functions: a feature that holds a queue back adds its own there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple, assert_never

from penstock.core.queue import refusing
from penstock.core.queue.contents import Contents
from penstock.core.queue.dispatching.consumers import Consumer, TargetList
from penstock.core.queue.order.priority import PriorityOrder
from penstock.core.queue.order.runs import NEVER, Run, holds
from penstock.core.queue.owning import foreign_spans, ours_among
from penstock.core.queue.places import Part, Place, leased
from penstock.core.queue.queue import Queue, queue_of
from penstock.core.queue.settling.attempts import binding_limit
from penstock.core.queue.settling.leases import SLOT
from penstock.core.queue.staging import NO_KEY
from penstock.core.queue.whole import TRIM
from penstock.records.chunks import Now
from penstock.units import format_duration


class Reason(NamedTuple):
    """One reason: a word for programs, a sentence for people."""

    code: str
    text: str


OWNERS_LOOKED = 1000
"""Spans of messages of other sites that are looked at for the names of their owners."""

# -- one message


def where(queue: Contents, lsn: int, now: Now, keys: bool = True) -> Reason | None:
    """Where a message is; None for one that the queue does not have.  keys: whether its keys are told."""
    for place in queue.places():
        for run in place.among(range(lsn, lsn + 1)):
            return _told(queue, place, run, lsn, now, keys)
    for consumer in queue.holders():
        if any(run.place == SLOT and holds(run.chunk, lsn) for run in consumer.leases.held()):
            return Reason("delivered", f"it was delivered, at most once, to {named(consumer)}")
    return None


def _told(queue: Contents, place: Place, run: Run, lsn: int, now: Now, keys: bool) -> Reason:
    match place.part:
        case "main" | "found" | "letters":
            return _SAID[place.part]
        case "returned":
            return Reason("ready", f"it is ready again{_after(queue, run)}")
        case "tenants" | "lines" | "unkeyed":
            word, text, front = where_in_shares(queue, place.part, lsn, keys)
            holder = where(queue, front, now, keys) if front else None
            return Reason(word, f"{text}, of which is said: {holder[1]}" if holder is not None else text)
        case "barriers":
            return Reason("barrier", _of_barriers(queue, lsn))
        case "tail":
            return Reason("inactive", f"it is inactive behind the target depth of {queue.settings.target_queue_depth}")
        case "theirs":
            return Reason("foreign", _of_others(queue, lsn))
        case "retries":
            times = f"{run.tally.failures} failure{'' if run.tally.failures == 1 else 's'}"
            return Reason(
                "delayed",
                f"it is delayed until {told(run.deadline)}, after {times}{_limit(queue)}{_whose(queue, lsn)}",
            )
        case "scheduled":
            due = queue.delays.scheduled.time_of(lsn)
            return Reason("delayed", f"it is delayed until {told(due)}{_whose(queue, lsn)}")
        case "leases":
            return Reason("leased", _held(queue, lsn, now))
        case _:
            assert_never(place.part)


def _whose(queue: Contents, lsn: int) -> str:
    """Behind what is said of a message that may be another site's."""
    return "" if len(ours_among(queue, range(lsn, lsn + 1))) else f"; {_of_others(queue, lsn)}"


def _of_others(queue: Contents, lsn: int) -> str:
    assert queue.foreign is not None
    claim = queue.foreign.claims.of(lsn)
    first = queue.settings.initial_owner
    how = {
        "first": "where it was published" if first is None else "the first owner of all",
        "transfer": "which asked for it",
        "yielded": "which has it from the same publisher", "proxied": "by proxied transfer",
    }  # fmt: skip
    since, asks = queue.foreign.history(lsn)
    text = f"site '{claim.owner}' owns it, {how[claim.why]}"
    text += f", since {told(since)}" if since else ""
    text += f"; it was transferred {_times(claim.serial)}" if claim.serial else "; it was never transferred"
    return text + (f", and asked for {_times(len(asks))} since, last at {told(asks[-1])}" if asks else "")


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _of_barriers(queue: Contents, lsn: int) -> str:
    before = 0
    for barrier in queue.barriers.waiting():
        if barrier.lsn == lsn:
            return "it is a barrier, and waits until all before it is settled"
        if any(holds(chunk, lsn) for chunk in barrier.pieces()):
            before = barrier.lsn
    return f"it is held back by the barrier at LSN {before}"


def _held(queue: Contents, lsn: int, now: Now) -> str:
    run, consumer = next(leased(queue, range(lsn, lsn + 1)))
    if consumer.fenced:
        return f"it is planned for the {consumer.tag.replace(':', ' ', 1)}"
    until = f" until {told(now.wall + run.deadline - now.mono)}" if run.deadline else ", and its lease has no end"
    return f"it is leased by {named(consumer)}{until}, attempt {run.tally.attempt}"


def before(queue: Contents, lsn: int) -> int:
    """How many ready messages stand before this one; 0 where they do not stand in order of arrival."""
    main = queue.main
    if isinstance(main, PriorityOrder) or not main.has(lsn):
        return 0
    fresh = sum(bisect_left(chunk, lsn) for chunk in main.chunks())
    return fresh + sum(run.below((lsn, lsn)) for run in queue.returned.runs())


# -- the queue

RECOVERING = "older messages are being looked for in the log, and it waits for their order"

_SAID: Mapping[Part, Reason] = {
    "main": Reason("ready", "it is ready"),
    "found": Reason("recovering", RECOVERING),
    "letters": Reason("dying", "it has expired, and its dead letter is being written"),
}


def not_ready(queue: Contents, now: Now) -> Iterator[Reason]:
    """What of the queue is not ready, and until when."""
    if queue.delayed:
        yield Reason("delayed", f"{messages(queue.delayed)} delayed, the next until {told(queue.delays.next())}")
    if queue.leased:
        yield Reason("leased", f"{messages(queue.leased)} leased")
    if queue.dying:
        again = queue.letters.due
        text = f"{messages(queue.dying)} on the way to the dead letters"
        if again < NEVER:
            text = f"a full queue refuses the dead letters of {messages(queue.dying, '')}; they are tried again in "
            text += f"{max(again - now.mono, 0) / 1e6:.0f} s"
        yield Reason("dying", text)
    if queue.inactive:
        depth = queue.settings.target_queue_depth
        yield Reason("inactive", f"{messages(queue.inactive)} inactive behind the target depth of {depth}")
    if queue.foreign_count:
        owners = sorted({claim.owner for _, _, claim in islice(foreign_spans(queue), OWNERS_LOOKED)})
        whose = "another site" if len(owners) == 1 else "other sites"
        yield Reason("foreign", f"{messages(queue.foreign_count)} owned by {whose}: {', '.join(owners)}")
    first = queue.barriers.first
    if first is not None:
        behind = messages(queue.barriers.held - 1, "")
        text = f"the barrier at LSN {first.lsn} waits until all before it is settled, and holds back {behind} behind it"
        yield Reason("barrier", text)


def at_work(queue: Contents, now: Now) -> Iterator[Reason]:
    """What the queue is busy with before it may deliver."""
    if queue.ranking is not None:
        yield Reason("ranking", "priorities of its messages are being worked out")
    if queue.older is not None:
        yield Reason("recovering", RECOVERING)
    if queue.expiry.busy:
        yield Reason("expiring", "messages that expired are being removed first")
    if queue.agenda & TRIM:
        yield Reason("overfull", "what is beyond its limits is being removed first")
    if queue.onward is not None:
        yield Reason("onward", f"what is due here goes on to exchange '{queue.onward}', and to no consumer")
    elif queue.exchange is not None:
        yield Reason("own", f"it belongs to exchange '{queue.exchange}', which remembers by it, and has no consumer")


# -- words


def named(consumer: Consumer) -> str:
    """A consumer by its tag, and by its client where that says more."""
    if consumer.client and consumer.client != consumer.tag:
        return f"consumer '{consumer.tag}' of client '{consumer.client}'"
    return f"consumer '{consumer.tag or consumer.client}'"


def told(wall: int) -> str:
    """A moment, to the millisecond."""
    try:
        moment = datetime.fromtimestamp(wall // 1_000_000, UTC).replace(microsecond=wall % 1_000_000 // 1000 * 1000)
    except (ValueError, OverflowError, OSError):
        return f"{wall // 1_000_000} s after 1970"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def messages(count: int, verb: str | None = None) -> str:
    """So many messages, and what they do: `is` or `are`, if not this."""
    noun = "message" if count == 1 else "messages"
    return f"{count} {noun} {('is' if count == 1 else 'are') if verb is None else verb}".rstrip()


def _after(queue: Contents, run: Run) -> str:
    times = run.tally.attempt
    return f", after {times} deliver{'y' if times == 1 else 'ies'}{_limit(queue)}" if times else ""


def _limit(queue: Contents) -> str:
    limit = binding_limit(queue.settings)
    return "" if limit is None else f"; {limit[0]} allows {limit[1]} deliveries"


def share_figures(queue: Contents) -> dict[str, object]:
    """For `stats`; nothing for a queue without shares."""
    shares = queue.shares
    if shares is None:
        return {}
    out: dict[str, object] = {"keys_unknown": shares.staging.count}
    if shares.groups is not None:
        out["group_keys"] = len(shares.groups.keys)
        out["group_waiting"] = shares.groups.count
    if shares.tenants is not None:
        out["tenants"] = len(shares.tenants.keys)
    return out


def held_up_by(queue: Contents, now: Now) -> Iterator[Reason]:
    """Why nothing more goes."""
    pace = queue.pace
    if pace is not None and (wait := pace.wait(now.mono)):
        rate = f"{pace.count} in {format_duration(pace.period)}"
        yield Reason("rate_limit", f"its rate_limit of {rate} is used up, the next may go in {format_duration(wait)}")
    most = queue.settings.max_leased[0]
    if most and queue.leased >= most:
        yield Reason("max_leased", f"its max_leased of {most} is reached")
    shares = queue.shares
    if shares is None:
        return
    if shares.staging.count:
        yield Reason("keys", f"keys of {shares.staging.count} of its messages are being worked out")
    if shares.groups is not None and shares.groups.count:
        yield Reason("group_key", f"{shares.groups.count} of its messages wait behind others of their keys")
    if shares.tenants is not None and shares.tenants.count and shares.tenants.stuck(now.mono):
        yield Reason("tenants", "each tenant that waits has as much out, or went as often, as it may")


def where_in_shares(queue: Contents, part: Part, lsn: int, keys: bool) -> tuple[str, str, int]:
    """Of a message that stands in this part of the queue's shares: (word, sentence, which one it waits for or 0)."""
    shares = queue.shares
    assert shares is not None
    groups, tenants = shares.groups, shares.tenants
    if part == "lines" and groups is not None:
        key = groups.keys.of(lsn)
        front = groups.front(key)
        named_key = f"its key '{groups.keys.texts[key]}'" if keys else "its key"
        return "group_key", f"{named_key} is in use by the message at LSN {front}", front
    tenant = tenants.tenant(lsn) if part == "tenants" and tenants is not None else None
    if tenant is None or tenants is None:
        return "keys", "its keys are being worked out", 0
    named_tenant = f"tenant '{tenants.keys.texts[tenant.number]}'" if keys else "its tenant"
    name = "messages without a key" if tenant.number == NO_KEY else named_tenant
    if tenant.leased >= tenants.leased_most:
        return "max_leased", f"it is ready, but {name} may have no more than {tenant.leased} leased", 0
    return "ready", f"it is ready, one of {tenant.count} of {name}", 0


CONSUMERS_MOST = 20
"""Consumers that a look at a queue tells of one by one."""


QueueReasons = Callable[[Queue, Now], Iterator[Reason]]


def explain_queue(queue: Queue, now: Now) -> list[Reason]:
    """Why nothing, or nothing more, of the queue is delivered now; empty when something can be at once."""
    return [reason for function in QUEUE_REASONS for reason in function(queue, now)]


def explain_message(queue: Queue, lsn: int, now: Now, durable: int, *, read: bool = True) -> list[Reason]:
    """Where a message of the queue is, and what it waits for; empty when the queue does not have it.

    durable: the last LSN that is on disk.
    read: whether who asks may read the message; if not, nothing is told that depends on what stands in it.
    """
    said = where(queue, lsn, now, read)
    if said is None:
        return []
    out = [said]
    once = queue.settings.semantics == "at-most-once" or queue.settings.deliver == "durable"
    if lsn > durable and (once or said.code == "ready"):
        out.append(Reason("commit", f"it waits for its commit: the log is on disk up to LSN {durable}"))
    if said.code == "ready":
        others = [reason for reason in explain_queue(queue, now) if reason.code not in _OF_EMPTY]
        if ahead := before(queue, lsn):
            out.append(Reason("behind", f"{messages(ahead)} ready before it"))
        out += others
        out += _unwanted(queue, lsn) if read else ()
    return out


# -- a queue


def _halted(queue: Queue, now: Now) -> Iterator[Reason]:
    until = queue.paused_until
    if queue.stopped:
        yield Reason("stopped", "an internal error has stopped the queue: it delivers nothing until the next start")
    elif queue.draining:
        yield Reason("draining", "the server drains: it delivers nothing until `penstock drain --undo`, or a restart")
    if queue.behind:
        sites = ", ".join(queue.behind)
        yield Reason("behind", f"this site was away: it delivers when these have told what happened: {sites}")
    if until >= NEVER:
        yield Reason("paused", "the queue is paused until somebody resumes it")
    elif until:
        yield Reason("paused", f"the queue is paused until {told(until)}")


def _nothing_ready(queue: Queue, now: Now) -> Iterator[Reason]:
    if queue.ready:
        return
    if not any(queue.places()):
        yield Reason("empty", "the queue is empty")
        return
    yield Reason("none_ready", "nothing is ready")


def _full(queue: Queue, now: Now) -> Iterator[Reason]:
    if queue.holds_up(1):
        yield Reason("full", f"it holds its publishers up until there is room: {refusing.told(queue)}")


def _takers(queue: Queue, now: Now) -> Iterator[Reason]:
    roster = queue.consumers
    if not roster:
        yield Reason("no_consumer", "it has no consumer")
        return
    limit = queue.settings.max_backlog
    if limit and queue.room <= 0:
        yield Reason("max_backlog", f"its max_backlog of {limit} is reached: {_are(queue.outstanding)} outstanding")
    if not queue.ready:
        return
    full = [_why_full(consumer) for consumer in roster]
    lists = dict.fromkeys(consumer.targets for consumer, why in zip(roster, full, strict=True) if why is None)
    if lists:
        yield from _nothing_wanted(queue, lists)
        return
    yield from filter(None, full[:CONSUMERS_MOST])
    if len(roster) > CONSUMERS_MOST:
        yield Reason("no_credit", f"{len(roster) - CONSUMERS_MOST} more consumers have no room either")


def _nothing_wanted(queue: Queue, lists: Iterable[TargetList | None]) -> Iterator[Reason]:
    """Why those who have room, by their filters, take nothing; None among these: somebody has none."""
    filters = [one for one in lists if one is not None]
    if None not in lists and all(queue.first_wanted(one) is None for one in filters):
        yield from (_unmatched(queue, one) for one in filters)


def _why_full(consumer: Consumer) -> Reason | None:
    """Why a consumer takes nothing now."""
    who = named(consumer)
    if consumer.choked:
        return Reason("no_credit", f"the connection of {who} takes no more bytes now")
    if consumer.room > 0:
        return None
    if consumer.standby:
        queue = queue_of(consumer)
        if queue.settings.single_active_consumer:
            active = queue.consumers[0]
            if active is not consumer and not active.standby:
                return Reason("standby", f"{who} waits: {named(active)} is the single active consumer")
        if queue.waits_for_filters:
            return Reason("standby", f"{who} waits until the filters of all have looked at what waits first")
        need = queue.settings.consumers_before_dispatch
        here = len(queue.consumers)
        return Reason("standby", f"{who} waits for other consumers: {here} of {need} are there")
    if not consumer.limit:
        return Reason("no_credit", f"{who} asked for a backlog of 0")
    shared = consumer.shared
    if shared is not None and shared.room <= 0:
        return Reason("no_credit", f"{who} has no credit: {shared.used} of the {shared.limit} it shares are out")
    return Reason("no_credit", f"{who} has no credit: it holds {consumer.outstanding} of {consumer.limit}")


def _unmatched(queue: Queue, targets: TargetList) -> Reason:
    text = targets.filter.text
    if queue.looks_on(targets):
        return Reason("filter", f"the filter {text!r} is still looking at what waits")
    return Reason("filter", f"the filter {text!r} matches none of the {queue.ready} that wait")


# -- one message


def _unwanted(queue: Queue, lsn: int) -> Iterator[Reason]:
    """Consumers whose filter does not let the message in, when there are no others."""
    roster = queue.consumers
    if not roster or any(consumer.targets is None for consumer in roster):
        return
    lists = dict.fromkeys(consumer.targets for consumer in roster if consumer.targets is not None)
    if any(lsn in one.found or one.back.has(lsn) for one in lists):
        return
    for one in lists:
        text = one.filter.text
        if one.parked or one.slot < 0 or queue.looks_on(one):
            yield Reason("filter", f"the filter {text!r} has not looked at it yet, as far as is known")
        else:
            yield Reason("filter", f"the filter {text!r} does not match it")


# -- words


def _are(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'}"


_OF_EMPTY = frozenset({"empty", "none_ready", "delayed", "leased", "dying", "inactive", "barrier", "full", "foreign"})
"""What a look at the queue says of other messages."""

QUEUE_REASONS: list[QueueReasons] = [_halted, _nothing_ready, not_ready, at_work, _full, held_up_by, _takers]
