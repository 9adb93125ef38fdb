"""What a member tells of itself and of the others: for people and programs, plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.replication.register import Member as Listed
    from penstock.server.cluster.member import Member


def plain(member: Member) -> dict[str, object]:
    """All of it, as of now."""
    state, now, replica, following = member.state, member.now(), member.replica, member.following
    out: dict[str, object] = {
        "member": member.me, "name": member.terms.name, "role": member.role.value, "trouble": member.trouble,
        "min_in_sync": member.terms.min_in_sync, "confirm": "local" if member.terms.local else "in-sync",
        "intact": member.known.intact,
    }  # fmt: skip
    if state is not None:
        out |= {
            "cluster": state.cluster, "term": state.term, "leader": state.leader, "format": state.format,
            "in_sync": sorted(state.in_sync), "to": state.to,
            "members": {key: _listed(one) for key, one in sorted(state.members.items())},
            "terms": [list(one) for one in state.terms],
        }  # fmt: skip
    if member.leads:
        followers = {
            one.member: {
                "acked_lsn": one.acked, "lag_bytes": max(0, one.sent - one.received),
                "level": one.level, "silent_seconds": round((now - one.heard_at) / 1e6, 3),
            }
            for one in member.sendings.values()
        }  # fmt: skip
        in_sync = member.election.in_sync
        out |= {
            "lsn": member.files.log.last, "committed_lsn": member.committed, "followers": followers,
            "enough": in_sync is not None and in_sync.enough,
            "lease_left_seconds": round((member.election.until(now) - now) / 1e6, 3),
        }  # fmt: skip
    elif replica is not None:
        out |= {"lsn": replica.last, "synced_lsn": replica.synced, "connected": following is not None}
        if following is not None:
            out |= {"leader_lsn": following.leader_last, "committed_lsn": following.leader_committed}
    return out


def _listed(one: Listed) -> dict[str, object]:
    return {"name": one.name, "address": one.address, "reads": one.reads}
