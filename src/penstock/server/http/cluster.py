"""What a member of a cluster of servers tells of it, as metrics: from what `GET /api/cluster` answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.replication.election import Role
from penstock.server.http.metrics import Family, Values

ANOTHER_TERM = 1 << 32
"""Between LSNs of two terms there are more than these: such a difference counts no records."""


def families(known: Mapping[str, Any]) -> Iterator[Family]:
    """All of them; none of a server that is in no cluster."""
    if not known:
        return
    roles = [([role.value], known["role"] == role.value) for role in Role if role is not Role.ENDED]
    yield Family("penstock_cluster_role", "What this member is: 1 for its role", ["role"], roles)
    counts = [
        ("term", "Number of the present leader's time; it grows with each takeover", known.get("term", 0)),
        ("members", "Members that the register lists", len(known.get("members", ()))),
        ("in_sync", "Members that hold everything that was confirmed", len(known.get("in_sync", ()))),
        ("min_in_sync", "With fewer in sync nothing is confirmed", known.get("min_in_sync", 0)),
        ("counts", "1: this member is in sync", known.get("member") in known.get("in_sync", ())),
        ("lsn", "Of the last record that this member has", known.get("lsn", 0)),
        ("committed_lsn", "Up to here all members in sync have the log on their disks", known.get("committed_lsn", 0)),
        ("trouble", "1: this member cannot take part, or could not the last time", bool(known.get("trouble"))),
    ]
    if "lease_left_seconds" in known:
        text = "How long the leader may go on without another word of the register or of its followers"
        counts.append(("lease_left_seconds", text, known["lease_left_seconds"]))
    if "connected" in known:
        counts.append(("connected", "1: this follower's stream from the leader is there", known["connected"]))
    for name, text, value in counts:
        yield Family(f"penstock_cluster_{name}", text, (), [((), value)])
    yield from _of_followers(known)


def _of_followers(known: Mapping[str, Any]) -> Iterator[Family]:
    """What the leader knows of each, and a follower of itself."""
    lags, records, silences = list[Any](), list[Any](), list[Any]()
    names = {key: one["name"] for key, one in known.get("members", {}).items()}
    for key, one in known.get("followers", {}).items():
        label = [names.get(key, key)]
        lags.append((label, one["lag_bytes"]))
        silences.append((label, one["silent_seconds"]))
        if (behind := known["lsn"] - one["acked_lsn"]) < ANOTHER_TERM:
            records.append((label, max(0, behind)))
    if 0 <= (behind := known.get("leader_lsn", -1) - known.get("lsn", 0)) < ANOTHER_TERM:
        records.append(([known["name"]], behind))
    text = "Bytes that the leader has sent to a follower and that are not on its disk yet"
    for name, what, values in (
        ("lag_bytes", text, lags),
        ("lag_records", "LSNs by which a follower's disk is behind the leader", records),
        ("ack_age_seconds", "Since a follower last said something", silences),
    ):
        found: Values = values
        if found:
            yield Family(f"penstock_cluster_{name}", what, ["member"], found)
