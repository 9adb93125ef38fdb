"""The first value of a register: a cluster of one member, made of a data folder that may hold a log already."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import PreconditionFailed, SettingsError, Unavailable
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.writer import LogSettings
from penstock.records.kinds import FORMAT
from penstock.replication.register import TERM_LSNS, ClusterState, Member
from penstock.replication.terms import first_base
from penstock.server.app import make_folder
from penstock.server.base.clock import SystemClock
from penstock.server.cluster import folder
from penstock.server.cluster.leading import new_id
from penstock.server.cluster.registers import MANUAL, register_at

if TYPE_CHECKING:
    from penstock.config.settings import Settings


def found(settings: Settings) -> ClusterState:
    """Make the cluster; what the register holds now.

    PreconditionFailed when the register, or the folder, is of a cluster already; else as `Log.open`.
    """
    if settings.cluster is None:
        raise SettingsError("the settings have no [cluster]")
    make_folder(settings.server.data)
    register = register_at(settings.cluster.registry, settings.server.data, settings.cluster.lease)
    if register.read().version:
        raise PreconditionFailed(f"the register {settings.cluster.registry} is of a cluster already")
    disk = OsDisk(settings.server.data)
    log = Log.open(disk, SystemClock(), LogSettings())
    try:
        known = folder.read(disk)
        if known is not None and known.cluster:
            raise PreconditionFailed(f"the folder {settings.server.data} is of cluster {known.cluster} already")
        origin, ceiling = log.origin, log.recovery.next_lsn + TERM_LSNS
    finally:
        log.close(clean=False)
    known = folder.opened(disk)
    state = ClusterState(
        new_id(), origin, ceiling=ceiling, in_sync=frozenset({known.member}), to=known.member,
        members={known.member: Member(settings.server.name, address_of(settings), FORMAT, known.starts)},
    )  # fmt: skip
    if settings.cluster.registry == MANUAL:
        state = in_lanes(state)
    folder.write(disk, known._replace(cluster=state.cluster))
    outcome = register.swap(0, state.encode())
    if not isinstance(outcome, int):
        raise Unavailable(f"the register {settings.cluster.registry} did not take the cluster ({outcome})")
    return state


def in_lanes(state: ClusterState) -> ClusterState:
    """The first value where each member has a copy."""
    [key] = state.members
    return replace(
        state, base=first_base(state.ceiling - TERM_LSNS), numbers=1, members={key: state.members[key].numbered(1)}
    )  # fmt: skip


def address_of(settings: Settings) -> str:
    """Where other members reach this one's stream."""
    assert settings.cluster is not None
    return settings.cluster.advertise or str(settings.cluster.listen)
