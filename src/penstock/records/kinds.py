"""The kinds of record in the log, and what each means: a number with what it says, and a row of the table `MEANINGS`.

The log holds decisions (which queues took a message, who was granted it, what was settled), so folding it runs no
filter, no regular expression, no policy, no clock and no chance.  A control record names its object in `name`, carries
its particulars as JSON in `properties` (called `header` on a `Control`), and LSN pairs in `body`: first the queue's id,
then `a, b` pairs of signed 64-bit little-endian integers, each pair meaning "this queue's own living messages in
[a, b)".

To add a kind: take the number above the highest, never one that is left out, and write its row.  Every reader that the
row names has to know the kind, and no other may; what has to be synced, who waits for it, where the messages of its
pairs may stand and what becomes of them everybody reads from the row, but for the fold: its audit is made of these
(`core.audit_log`).  `FORMAT` rises by one and is its `since`: a cluster, of which a member may still be older, has no
such record before `penstock cluster finalize`, and a command that would write one asks `Outbox.check_format` first.  If
an existing kind changes its meaning, add real old bytes to the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias, get_args


class Kind(IntEnum):
    """What one row of the log says.  Stored as int8; numbers are never reused.

    Below each stands its header, where a question mark stands behind what may be missing, its body, and what it means.
    """

    # messages
    PUBLISH = 1
    """name: routing key; via, route, expires_at, not_before, priority; properties: the message's header; its body"""
    PUBLISH_TRANSIENT = 2
    """the same, but the next BOOT ends it"""
    # the life of the process
    BOOT = 3
    """{"clean", "instance", "version"}, of the first also "defaults" (`core.state.durable`), of a leader in a cluster
    "term", "member" and "before", the last LSN that it found: a process begins; leases, transient messages, queues that
    are not durable and exclusive ones end"""
    MARK = 4
    """empty: its batch claims the durable LSN, so that damage of the last batch is no torn tail; or a fault has undone
    the record that had this LSN"""
    BASE = 5
    """{"part", "parts", "floor"}; body: a slice of the encoded durable state as of `floor`"""
    # interned tables
    PUBLISHERS = 6
    """{publisher: highest sequence} of one commit"""
    VIA = 7
    """{"vhost", "exchange", "bcc"?}; via: the id of these; bcc: further keys of the messages that name it. Told again
    with another vhost where that is gone: its messages are of none that has the name later"""
    ROUTE = 8
    """route: the id; body: packed ids of the queues that take its messages"""
    TOOK = 9
    """queue and pairs: it took these rows of the same group, whose route does not say so"""
    # topology; the LSN of a QUEUE_DECLARE is the id of the queue
    EXCHANGE_DECLARE = 10
    """{"vhost", "type", "durable", "auto_delete", "internal", "arguments", "exchanges"?}"""
    EXCHANGE_DELETE = 11
    """{"vhost"}"""
    QUEUE_DECLARE = 12
    """{"vhost", "durable", "exclusive", "auto_delete", "arguments", "settings", "changed"?, "ruling"?}: settings: its
    own; changed: those of them that are others in force; ruling: why (`core.topology.ruling`)"""
    QUEUE_ALTER = 13
    """queue; {"settings"}: the whole new settings, its own and in force; or {"changed", "ruling"}: those in force that
    are others now, and why"""
    QUEUE_DELETE = 14
    """queue; {"vhost"}"""
    BIND = 15
    """{"vhost", "source", "destination", "destination_type", "key", "arguments"}"""
    UNBIND = 16
    """as BIND"""
    TOPIC_DECLARE = 17
    """{"vhost", "exchange", "settings", "kept"?}: a topic that keeps what no queue takes; kept: the records of its keys
    go on, though its bodies are of another type"""
    TOPIC_DELETE = 18
    """{"vhost", "exchange"}"""
    # what happened to a queue's messages
    GRANT = 20
    """queue and pairs; {"consumer", "client", "attempt", "unseen"?}; or {"attempt", "unseen"?, "to": [[consumer,
    client, pairs], ...]}: to several, in the order of the pairs, of which so many are each one's; attempt: the number
    of the send; unseen: of those before it, how many nobody saw"""
    RETURN = 21
    """queue and pairs; {"cause", "failed", "cancelled", "unseen"?, "why"?, "not_before"?}: with the last they are
    delayed until then"""
    SETTLE = 22
    """queue and pairs; {"by"}, {"by": [[client, pairs], ...]} or {"site"}: acknowledged, here or there, or removed as
    they were sent; by several: in the order of the pairs, of which so many are each one's"""
    EXPIRE = 23
    """queue and pairs; {"reason", "why"?, "by"?, "dead": [[cause, new], ...]?, "sent": [[cause, new], ...]?, "into"?,
    "letters": [new, ...]?, "left": [[action, step, pairs], ...]?}: removed without success; reason: `records.causes`;
    why: the words of who refused them, or failed last; dead: their dead letters; sent: where they went on; into: the
    one queue that took these, whatever it shows; letters: those of them that are dead letters still; left: what actions
    still have to do, from which step on (-1: all, not judged yet).  Or {"reason", "refused": [new, ...]}: dead letters
    of newcomers that it refused.  {"foreign"}: other sites own them, and make their dead letters"""
    DROP = 24
    """queue and pairs; {"reason", "by"?, "site"?}: they gave way to a limit, were withdrawn, or are from before the
    recovery point"""
    PURGE = 25
    """queue and pairs: everything that was ready when the queue was purged"""
    DUE = 26
    """queue and pairs; {"place"}: delayed messages are ready: 0: at their own places; 1: at that of this record; 2: at
    the head, before whatever stood there (place `HEAD` and this LSN)"""
    BARRIER = 27
    """queue and pairs: it took these as barriers; in one group with their rows"""
    DEFER = 28
    """queue and exact pairs at `origin`; {"origin", "verb", "by", "until"}: an ack of what is absent"""
    # streams and sinks
    STREAM = 30
    """name: stream; {"queue", "epoch", "mode", "floor", "time"?, "asked"?, "abandon_after"?, "pipeline"?, "owner"?}:
    opened, or fenced anew; asked: what log mode reads, from the next batch on; times in microseconds; pipeline, owner:
    whose"""
    PLAN = 31
    """name: stream; {"batch", "epoch", "queue"}; queue and pairs: granted as that batch"""
    PLAN_SETTLE = 32
    """name: stream; {"batch", "query"?, "query_batch"?}: batches up to this one are settled (their pairs leave the
    queue); it was that batch of that query"""
    STREAM_RELEASE = 33
    """name: stream; {"batch"?, "epoch"?, "released"?, "abandoned"?, "dropped"?}: what is planned and not settled goes
    back to the queue, and it holds nothing of the log from the time `released` on; dropped: there is no such stream
    now"""
    SINK_COMMIT = 34
    """name: query; {"batch", "rows", "name"?, "once"?, "user"?}: the rows of the same group are that batch's output;
    name: for people; once: the query has this one batch; user: whose it is"""
    DECIDED = 35
    """name: query; {"batch", "parts", "settle"?, "name"?, "once"?, "user"?}: a commit too large for one group.  Of each
    part [stage, rows, bytes, CRC-32C, topic or null, exchange, vhost, whether deltas?]; settle: [stream, batch], done
    in this group"""
    CHUNK = 36
    """name: query; {"batch", "chunk", "rows"}: the messages of the same group are the next chunk (from 1) of the
    decided batch; with it the first `rows` rows of all its parts, in order, are copied"""
    UNDEFER = 37
    """queue and exact pairs at `origin`; {"origin"}: those acks are remembered no longer"""
    # passes over the log for one queue
    RECOVER = 40
    """queue; {"point", "from", "time"?}: a pass over [from, this LSN) begins, another one ends"""
    RECOVERED = 41
    """queue and pairs, all of which are messages that it takes, whatever their route says; {"upto"?, "columns"?: {name:
    [a, b, value, ...]}, "carried"?: [[peer, first LSN here, first LSN there, count], ...]}: it took no others below
    `upto`; without, they are the history of an exchange to which it was bound in this group; columns as in a durable
    state; carried: which that site published, as CARRIED said when they came"""
    # publishers that are forgotten, actions
    PUBLISHERS_GONE = 45
    """{"publishers": [name, ...]}: nothing came of them for `publisher_expiration`"""
    ACTED = 46
    """name: an action; {"floor", "cause"?, "since"?}; exact pairs: it has done what these messages of the record
    `cause` set off (without one each is its own cause); all up to `floor` is done with.  In one group with what an
    action publishes last"""
    # topics with a present record for each key
    SOW_PUT = 50
    """name: topic; body: packed 64-bit integers (`core.sow.index`): the rows of the same group are the present records
    of these keys"""
    SOW_DROP = 51
    """name: topic; {"reason": "deleted" or "expired", "by"?, "lsns"?}; body as of SOW_PUT: these keys have no record
    now; lsns: of the records they had, where an action wants to know"""
    # what rules many queues and exchanges
    POLICY = 60
    """name: policy; {"vhost", "operator", "pattern", "definition", "settings", "priority", "apply_to", "origin",
    "alternate_exchange"?, "exchanges"?}: there is this policy, whatever was there; in one group with a QUEUE_ALTER of
    each queue for which something changes; exchanges: [[vhost, name, policy or null, alternate exchange or null], ...]
    that are ruled otherwise now"""
    POLICY_DELETE = 61
    """name: policy; {"vhost", "operator", "exchanges"?}"""
    ADDRESS_SETTING = 62
    """name: pattern; {"vhost", "literal", "values"?}: without values it goes"""
    # commands about waiting messages, keys, transactions
    PAUSE = 63
    """queue; {"until", "by"?}: microseconds; nothing is delivered before; 0: it goes on"""
    RESCHEDULE = 64
    """queue and pairs; {"not_before", "by"?}: delayed until then; DUE says their place anew"""
    DEDUP = 65
    """queue and (LSN, key) pairs as in KEYED; {"time"}; in one group with the rows: it took messages with these keys
    then, and lets no duplicates in"""
    TRANSACTION = 66
    """{"first", "rows", "ended", "by"?}: the last record of a group that one client committed as a whole: messages
    (`rows` of them) and ends of deliveries (`ended`), from the LSN `first` on"""
    KEYED = 68
    """queue and (LSN, key) pairs, a key being 64 bits that are not 0; in one group with the rows: the keys by which the
    queue knows which message a newer one replaces"""
    # more of streams and sinks
    STREAM_TRY = 70
    """name: stream; {"batch", "epoch", "tries"}: so many readers have failed to settle the batch"""
    STREAM_NARROW = 71
    """name: stream; {"batch", "epoch", "revision", "level"?: [rows, more], "poison"?: 1}; queue and pairs: these alone
    are the batch now.  The others went back to the queue (a RETURN follows), and the next `more` rows come in batches
    of at most `rows`; or the one there was is put aside (an EXPIRE follows)"""
    STREAM_START = 72
    """name: stream; {"start", "said", "time"}: log mode begins at this LSN, which `said` names"""
    STREAM_READ = 73
    """name: stream; {"time"}: somebody reads it still"""
    SINK_FORGET = 74
    """{"queries": [id, ...]}: what they have committed is known no longer"""
    LINEAGE = 78
    """name: query; {"batch", "of"?, "outputs"?, "chunk"?}: the SINK_COMMIT, DECIDED or CHUNK of the same group was made
    of what `of` says ({"pipeline"?, "inputs"?, "tables"?, ...}, as the sink was told), and its messages are [[vhost,
    exchange, topic, first LSN, last LSN, rows], ...]"""
    # queues over several sites
    PEER = 80
    """name: a site; {"peer", "origin", "group"}: by this number it is named from now on; 0 is this site"""
    CARRIED = 81
    """name: a site; {"peer", "path": [origin, ...], "times"?: [LSN here, microseconds, ...], "letters"?, "into"?};
    body: packed triples of 64-bit integers: first LSN here, first LSN there, count: these rows of the same group were
    published at that site, and have passed these; times: when, from each of these LSNs on; letters: a site wrote them
    as dead letters; into: they were moved to the queue of this name, and no other takes them"""
    OWN = 82
    """queue and exact pairs; {"owner", "site", "serial", "why"}: the site of that number, so called then, alone may
    lease them from now on; serial: how many transfers there were; why: first, transfer, yielded or proxied"""
    LINK = 83
    """name: site; {"peer", "heard"?, "acked"?, "paused"?, "forgot"?, "between"?, "floor"?}: what is so now of the links
    between it and this one (`core.links.lasting`); forgot: where its messages stand here is known no longer of those
    below this LSN; between: [LSN, first, stop, ...]: nor of those below that, but for these spans of them.  Or {"peer",
    "ended"}: every site was told of the queues that ended up to there; nothing is said of this one.  Or {"peer",
    "passed"}: what it published with a lower LSN has gone by where nothing took it"""
    PROXY = 84
    """queue; {"on", "by"?}: this site acts for owners that are away, or does so no longer"""
    CLAIMED = 85
    """queue and exact pairs at `origin`; {"origin", "site", "serial", "why"}: a claim as in OWN to messages that have
    not come yet; it holds when they do; with "vhost", and no queue but its name: what this site was granted and had no
    queue for is that site's, once and for all, until that one says who has it, or that it is done; with "of", a vhost,
    and no queue but its name: it holds for the next of that name; serial 2^53: these are done, as the site has told;
    the site NUL: they are for the first that says it has such a queue; with "in", a vhost, and "to": what is told to
    that site alone of what it has found, or enquired"""
    NUMBERED = 86
    """{"publishers"}; body: (publisher, site, sequence, LSN, count) as 64-bit integers; in one group with the rows:
    their publishers and sequences, where other sites may have the same messages; of publisher -1: forgotten"""


State: TypeAlias = Literal["ready", "leased", "planned", "delayed", "gone"]
"""Where the messages of a record's pairs stand; planned: in a batch of a stream, which holds them over a start."""

Haste: TypeAlias = Literal["synced", "awaited", "lazy"]
"""How soon a record is on the disk.

synced      whatever the setting `sync` says
awaited     with the next commit, as soon as the writer is idle: somebody waits for it
lazy        with whatever is written next, or after a while: nobody does
"""

Reader: TypeAlias = Literal["fold", "audit", "story", "views", "events", "links"]
"""Who does something with a kind.

fold      the durable state: what a start must know, whether it moves messages or not
audit     more than counting, which it does with every kind
story     the life of one message
views     the rows of views and of topics with a key
events    what `server.notices` tells who looks on
links     what other sites are told of (`core.links.telling`)

Others look at single kinds for a purpose of their own, and need no row: the log at VIA, BASE and MARK, actions at what
ended, pipelines at LINEAGE.
"""

READERS: tuple[Reader, ...] = get_args(Reader)

FORMAT = 1
"""Of the log that this version writes, and the newest that it reads."""


class Meaning(NamedTuple):
    """What a kind means.

    readers   who does something with it; the others pass over it
    haste     how soon it is on the disk
    of        where the messages of its pairs may stand before; empty: wherever they are, while they live
    to        where they stand then; None: it moves none, or tells that in its header
    word      what has happened to a message of its pairs, in its story
    since     the format of the log that has it first: who reads older ones alone never meets it
    """

    readers: tuple[Reader, ...]
    haste: Haste = "awaited"
    of: tuple[State, ...] = ()
    to: State | None = None
    word: str = ""
    since: int = 1


_TOPOLOGY: tuple[Reader, ...] = ("fold", "events")
_MOVES: tuple[Reader, ...] = ("fold", "audit", "story", "views")
_TOLD: tuple[Reader, ...] = (*_MOVES, "links")
_BATCHES: tuple[Reader, ...] = ("fold", "audit", "story")
_AUDITED: tuple[Reader, ...] = ("fold", "audit")

MEANINGS: Mapping[Kind, Meaning] = {
    Kind.PUBLISH: Meaning(_TOLD),
    Kind.PUBLISH_TRANSIENT: Meaning(_TOLD, "lazy"),
    Kind.BOOT: Meaning(("fold", "audit", "story"), "synced"),
    Kind.MARK: Meaning((), "lazy"),
    Kind.BASE: Meaning((), "synced"),
    Kind.PUBLISHERS: Meaning(_AUDITED),
    Kind.VIA: Meaning(("fold",)),
    Kind.ROUTE: Meaning(("fold", "audit", "story")),
    Kind.TOOK: Meaning(_MOVES),
    Kind.EXCHANGE_DECLARE: Meaning(_TOPOLOGY, "synced"),
    Kind.EXCHANGE_DELETE: Meaning(_TOPOLOGY, "synced"),
    Kind.QUEUE_DECLARE: Meaning(READERS, "synced"),
    Kind.QUEUE_ALTER: Meaning(("fold", "audit", "views", "events", "links"), "synced"),
    Kind.QUEUE_DELETE: Meaning((*_MOVES, "events", "links"), "synced"),
    Kind.BIND: Meaning(_TOPOLOGY, "synced"),
    Kind.UNBIND: Meaning(_TOPOLOGY, "synced"),
    Kind.TOPIC_DECLARE: Meaning(("fold", "views", "events"), "synced"),
    Kind.TOPIC_DELETE: Meaning(("fold", "views", "events"), "synced"),
    Kind.GRANT: Meaning(_MOVES, "lazy", ("ready",), "leased", "leased"),
    Kind.RETURN: Meaning(_MOVES, "lazy", ("leased", "planned"), "ready", "returned"),
    Kind.SETTLE: Meaning(_TOLD, "lazy", to="gone", word="settled"),
    Kind.EXPIRE: Meaning(_TOLD, to="gone", word="expired"),
    Kind.DROP: Meaning(_TOLD, to="gone", word="dropped"),
    Kind.PURGE: Meaning(READERS, of=("ready",), to="gone", word="purged"),
    Kind.DUE: Meaning(_MOVES, "lazy", ("delayed",), "ready", "due"),
    Kind.BARRIER: Meaning(("fold", "story"), word="barrier"),
    Kind.DEFER: Meaning(("fold",)),
    Kind.STREAM: Meaning(("fold", "audit", "events"), "synced"),
    Kind.PLAN: Meaning(_BATCHES, "synced", ("leased",), "planned", "planned"),
    Kind.PLAN_SETTLE: Meaning(_BATCHES, "synced"),
    Kind.STREAM_RELEASE: Meaning(("fold", "audit", "story", "events"), "synced"),
    Kind.SINK_COMMIT: Meaning(_AUDITED, "synced"),
    Kind.DECIDED: Meaning(_AUDITED, "synced"),
    Kind.CHUNK: Meaning(_AUDITED, "synced"),
    Kind.UNDEFER: Meaning(("fold",)),
    Kind.RECOVER: Meaning(("fold", "links")),
    Kind.RECOVERED: Meaning(_TOLD, "lazy"),
    Kind.PUBLISHERS_GONE: Meaning(_AUDITED),
    Kind.ACTED: Meaning(("fold",), "lazy"),
    Kind.SOW_PUT: Meaning(("fold", "views")),
    Kind.SOW_DROP: Meaning(("fold", "views")),
    Kind.POLICY: Meaning(("fold", "audit", "events"), "synced"),
    Kind.POLICY_DELETE: Meaning(("fold", "audit", "events"), "synced"),
    Kind.ADDRESS_SETTING: Meaning(_TOPOLOGY, "synced"),
    Kind.PAUSE: Meaning(("fold", "story", "events"), "synced"),
    Kind.RESCHEDULE: Meaning(_MOVES, of=("ready", "delayed"), to="delayed", word="rescheduled"),
    Kind.DEDUP: Meaning(("fold",)),
    Kind.TRANSACTION: Meaning(("audit",), "synced"),
    Kind.KEYED: Meaning(("fold",)),
    Kind.STREAM_TRY: Meaning(_AUDITED, "synced"),
    Kind.STREAM_NARROW: Meaning(_BATCHES, "synced"),
    Kind.STREAM_START: Meaning(("fold",), "synced"),
    Kind.STREAM_READ: Meaning(("fold",), "lazy"),
    Kind.SINK_FORGET: Meaning(_AUDITED),
    Kind.LINEAGE: Meaning(()),
    Kind.PEER: Meaning(("fold",), "synced"),
    Kind.CARRIED: Meaning(("fold", "links")),
    Kind.OWN: Meaning((*_BATCHES, "links"), word="owned"),
    Kind.LINK: Meaning(("fold",), "lazy"),
    Kind.PROXY: Meaning(_BATCHES, "synced"),
    Kind.CLAIMED: Meaning(("fold", "links"), "lazy"),
    Kind.NUMBERED: Meaning(("fold", "links")),
}


def withheld(format: int) -> frozenset[Kind]:
    """The kinds that a log of this format may not have, for not everybody who reads it knows them."""
    return frozenset(kind for kind, meaning in MEANINGS.items() if meaning.since > format)


PUBLISHES = frozenset({Kind.PUBLISH, Kind.PUBLISH_TRANSIENT})
"""Kinds that carry a message."""

MOVES = frozenset(kind for kind, meaning in MEANINGS.items() if meaning.to not in (None, "planned"))
"""Kinds that say nothing but what became of a queue's messages; a plan says which batch of which stream they are."""

ENDED = frozenset(kind for kind, meaning in MEANINGS.items() if meaning.to == "gone")
"""Those after which the queue no longer has the messages of their pairs."""

SYNCED = frozenset(kind for kind, meaning in MEANINGS.items() if meaning.haste == "synced")
"""Kinds whose commit is synced whatever the setting `sync` says."""

LAZY = frozenset(kind for kind, meaning in MEANINGS.items() if meaning.haste == "lazy")
"""Kinds that nobody waits for: they ride with the next commit, or go after `ack_sync`."""

HEAD = 1 << 60
"""Places from here on are before all others; the later the record whose LSN is added, the further in front."""

NO_ROUTE = -1
"""In memory: no queue took the message (null in the log's `route` column)."""

NO_VIA = -1
"""In memory: default vhost and default exchange (null in the log's `via` column)."""
