"""The kinds of record in the log, and what each column means for them.

The log holds decisions (which queues took a message, who was granted it, what was settled), so folding it runs no
filter, no regular expression, no policy, no clock and no chance.  A control record names its object in `name`, carries
its particulars as JSON in `properties` (called `header` on a `Control`), and LSN pairs in `body`: first the queue's id,
then `a, b` pairs of signed 64-bit little-endian integers, each pair meaning "this queue's own living messages in
[a, b)".

To add a kind: take the next free number, never reuse one, say here what its columns hold, teach `core.state.objects`,
and add real old bytes to the tests if an existing kind changes its meaning.
"""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """What one row of the log says.  Stored as int8; numbers are never reused."""

    # messages
    PUBLISH = 1  # name: routing key; via, route, expires_at, not_before, priority; properties: header; body
    PUBLISH_TRANSIENT = 2  # the same, but the next BOOT ends it

    # the life of the process
    BOOT = 3  # header {"clean", "instance", "version"}: ends leases, transient messages, non-durable queues
    MARK = 4  # empty: its batch claims the durable LSN, so that rot in the last batch is no torn tail
    BASE = 5  # header {"part", "parts", "floor"}; body: a slice of the encoded durable state as of `floor`
    PUBLISHERS = 6  # header {publisher: highest sequence} of one commit

    # interned tables
    VIA = 7  # via: the id; header {"vhost", "exchange", "bcc"?}; bcc: further keys of the messages that name this id
    ROUTE = 8  # route: the id; body: packed ids of the queues that took the message
    TOOK = 9  # queue id + pairs: the queue took these rows (past 65,536 routes in a segment)

    # topology; the LSN of a QUEUE_DECLARE is the id of the queue
    EXCHANGE_DECLARE = 10  # header {"vhost", "type", "durable", "auto_delete", "internal", "arguments", "exchanges"?}
    EXCHANGE_DELETE = 11  # header {"vhost"}
    QUEUE_DECLARE = 12  # header {"vhost", "durable", "exclusive", "auto_delete", "arguments", "settings", "changed"?,
    #   "ruling"?}: settings: its own; changed: those of them that are others in force; ruling: `core.state.rulings`
    QUEUE_ALTER = 13  # queue id; header {"settings"}: the whole new settings, its own and in force; or
    #   {"changed", "ruling"}: those in force that are others now, and why they are in force
    QUEUE_DELETE = 14  # queue id
    BIND = 15  # header {"vhost", "source", "destination", "destination_type", "key", "arguments"}
    UNBIND = 16  # the same
    TOPIC_DECLARE = 17  # header {"vhost", "exchange", "settings"}: a topic that keeps what no queue takes
    TOPIC_DELETE = 18  # header {"vhost", "exchange"}

    # what happened to a queue's messages; body: queue id + pairs
    GRANT = 20  # header {"consumer", "client", "attempt"}: leased.  Lazy, never synced on its own.  Or {"attempt",
    #   "to": [[consumer, client, pairs], ...]}: to several, in the order of the pairs, of which so many are each one's
    RETURN = 21  # header {"cause", "failed", "cancelled", "unseen"?, "not_before"?}: back to ready (or delayed)
    SETTLE = 22  # header {"by"}: acknowledged, or removed at send
    EXPIRE = 23  # header {"reason", "by"?, "dead": [[cause, new], ...]?, "left": [[action, step, pairs], ...]?}:
    #   or {"reason", "refused": [new, ...]}: dead letters of newcomers that it refused
    #   removed without success; left: what actions still have to do, from which step on (-1: all, not judged yet)
    DROP = 24  # header {"reason", "by"?}: gave way to a limit, was withdrawn, or is from before the recovery point
    PURGE = 25  # everything that was ready when the queue was purged
    DUE = 26  # header {"place": 0, 1 or 2}: delayed messages became ready; 1: they take the place of this record,
    #   2: they stand at the head, before whatever stood there (place `HEAD` + this LSN)
    BARRIER = 27  # the queue took these as barriers; in one group with their rows
    DEFER = 28  # queue id + exact pairs at `origin`; header {"origin", "verb", "by", "until"}: an ack of what is absent
    UNDEFER = 37  # queue id + exact pairs at `origin`; header {"origin"}: those are remembered no longer

    # streams and sinks
    STREAM = 30  # name: stream; header {"queue", "epoch", "mode", "floor", "time"?, "asked"?, "abandon_after"?,
    #   "pipeline"?}: opened, or fenced anew; asked: what log mode reads, from the next batch on; times in microseconds;
    #   pipeline: whose it is
    PLAN = 31  # name: stream; header {"batch", "epoch", "queue"}; body: queue id + pairs granted as that batch
    PLAN_SETTLE = 32  # name: stream; header {"batch", "query"?, "query_batch"?}: batches <= batch are settled (their
    #   pairs leave the queue); it was that batch of that query
    STREAM_RELEASE = 33  # name: stream; header {"batch"?, "epoch"?, "released"?, "abandoned"?, "dropped"?}: planned,
    #   unsettled messages go back to the queue, and it holds nothing of the log from the time `released` on;
    #   dropped: there is no such stream now
    SINK_COMMIT = 34  # name: query id; header {"batch", "rows", "name"?, "once"?, "user"?}: the rows of the same group
    #   are that batch's output; name: for people; once: the query has this one batch; user: whose it is
    DECIDED = 35  # name: query id; header {"batch", "parts", "settle"?, "name"?, "once"?, "user"?}: a commit too large
    #   for one group.  Of each part [stage, rows, bytes, CRC-32C, topic or null, exchange, vhost, whether deltas?];
    #   settle: [stream, batch], done in this group
    CHUNK = 36  # name: query id; header {"batch", "chunk", "rows"}: the messages of the same group are the next chunk
    #   (from 1) of the decided batch; with it the first `rows` rows of all its parts, in order, are copied
    SINK_FORGET = 74  # header {"queries": [id, ...]}: what they have committed is known no longer

    # passes over the log for one queue (`core.state.passing`)
    RECOVER = 40  # queue id; header {"point", "from", "time"?}: a pass over [from, this LSN) begins, another one ends
    RECOVERED = 41  # queue id + pairs, all of which are messages that the queue takes, whatever their route says;
    #   header {"upto", "columns"?: {name: [a, b, value, ...]}}: it took no others below `upto`; columns
    #   as in a durable state

    PUBLISHERS_GONE = 45  # header {"publishers": [name, ...]}: nothing came of them for `publisher_expiration`
    ACTED = (
        46  # name: an action; header {"floor", "cause"?, "since"?}; body: exact pairs: it has done what these messages
    )
    #   of the record `cause` set off (without one each is its own cause); all up to `floor` is done with.  Lazy, but in
    #   one group with what an action publishes last

    # SOW topics; body: packed 64-bit integers, `core.sow.records` says which
    SOW_PUT = 50  # name: the topic; the rows of the same group are the present records of these keys
    SOW_DROP = (
        51  # name: the topic; header {"reason": "deleted" or "expired", "by"?, "lsns"?}: these keys have no record
    )
    #   now; lsns: of the records they had, where an action wants to know

    # what rules many queues and exchanges; in one group with a QUEUE_ALTER of each queue for which something changes.
    # exchanges: [[vhost, name, policy or null, alternate exchange or null], ...] that are ruled otherwise from now on
    POLICY = 60  # name: the policy; header {"vhost", "operator", "pattern", "definition", "settings", "priority",
    #   "apply_to", "origin", "alternate_exchange"?, "exchanges"?}: there is this policy, whatever was there
    POLICY_DELETE = 61  # name: the policy; header {"vhost", "operator", "exchanges"?}
    ADDRESS_SETTING = 62  # name: the pattern; header {"vhost", "literal", "values"?}: without values it goes

    # commands about waiting messages
    PAUSE = 63  # queue id; header {"until", "by"?}: microseconds; nothing is delivered before; 0: it goes on
    RESCHEDULE = 64  # queue id + pairs; header {"not_before", "by"?}: delayed until then; DUE says their place anew
    DEDUP = 65  # body: queue id + (LSN, key) pairs as in KEYED; header {"time"}; in one group with the rows: the queue
    #   took messages with these keys then, and lets no duplicates in
    TRANSACTION = (
        66  # header {"first", "rows", "ended", "by"?}: the last record of a group that one client committed as
    )
    #   a whole: messages (`rows` of them) and ends of deliveries (`ended`), from the LSN `first` on

    STREAM_START = 72  # name: stream; header {"start", "said", "time"}: log mode begins at this LSN, which `said` names
    STREAM_READ = 73  # name: stream; header {"time"}: somebody reads it still.  Lazy

    LINEAGE = 78  # name: query id; header {"batch", "of"?, "outputs"?, "chunk"?}: the SINK_COMMIT, DECIDED or CHUNK of
    #   the same group was made of what `of` says ({"pipeline"?, "inputs"?, "tables"?, ...}, as the sink was told), and
    #   its messages are [[vhost, exchange, topic, first LSN, last LSN, rows], ...].  The fold passes it by

    KEYED = 68  # body: queue id + (LSN, key) pairs, a key being 64 bits that are not 0; in one group with the rows:
    #   the keys by which the queue knows which message a newer one replaces

    STREAM_TRY = 70  # name: stream; header {"batch", "epoch", "tries"}: so many readers have failed to settle the batch
    STREAM_NARROW = (
        71  # name: stream; header {"batch", "epoch", "revision", "level"?: [rows, more], "poison"?: 1}; body:
    )
    #   queue id + pairs: these alone are the batch now.  The others went back to the queue (a RETURN follows), and the
    #   next `more` rows come in batches of at most `rows`; or the one there was is put aside (an EXPIRE follows)


PUBLISHES = frozenset({Kind.PUBLISH, Kind.PUBLISH_TRANSIENT})
"""Kinds that carry a message."""

HEAD = 1 << 60
"""Places from here on are before all others; the later the record whose LSN is added, the further in front."""

NO_ROUTE = -1
"""In memory: no queue took the message (null in the log's `route` column)."""

NO_VIA = -1
"""In memory: default vhost and default exchange (null in the log's `via` column)."""
