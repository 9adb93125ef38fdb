"""The first thing that a server's process does: what Arrow and gRPC look for, in the environment and beside them, as
they are loaded.

Both come with `server.process`, so this module imports neither.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.server.base.allowed import Machine, budget_within, check_allowed
from penstock.server.base.loading import HTTP, decoded_most, do_without_pandas, of_a_door, with_bounded_pool
from penstock.server.doors.door_process import spawned
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.server.base.progress import Show

GRPC_VERBOSITY = "GRPC_VERBOSITY"
"""gRPC and its protobuf write a line to standard error for each malformed message, before anybody has logged in: a
stranger would fill the disk that the server's output goes to.  An operator who looks for something sets it himself."""


def serve(settings: Settings, *, ready_file: str | None = None, show: Show | None = None) -> None:
    """Run a server until SIGTERM or SIGINT, as `process.serve`."""
    check_allowed(settings.log.segment)
    settings = within(Machine().bound(settings.server.memory), settings)
    os.environ.setdefault(GRPC_VERBOSITY, "NONE")
    door = None
    if settings.cluster is None and any(name.startswith("flight") for name in settings.listen.doors()):
        door = spawned("penstock.server.flight.front", of_a_door(settings.server.memory))  # who follows has none
    http = None
    if settings.server.doors != 0 and any(name.startswith("http") for name in settings.listen.doors()):
        http = spawned("penstock.server.http.front", HTTP)
    with_bounded_pool(decoded_most(settings.server.memory))
    do_without_pandas()
    from penstock.server.process import serve as run  # after that

    run(settings, ready_file=ready_file, show=show, door=door, http=http)


def within(bound: tuple[int, str] | None, settings: Settings) -> Settings:
    """The same with a budget for which there is room, as `Machine.bound` tells: who goes beyond that is killed."""
    asked, origin = settings.server.memory, settings.origin("server.memory")
    most, whose = bound or (None, "")
    budget = budget_within(most, asked)
    if most is None or budget == asked:
        return settings
    why = f"{whose} {format_size(most)}; {format_size(asked)} by {origin}"
    return settings.with_memory(budget, why)
