"""What a running server has: its settings, people, log, engine, doors and threads.

Whoever tells of a server or changes it, HTTP's management and Flight's administration for instance, knows this of it;
`App` starts and stops it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.server.access import Shares
from penstock.server.accounts import accounts_of
from penstock.server.clock import SystemClock
from penstock.server.counters import Counters
from penstock.server.pools import Pools
from penstock.server.progress import Progress
from penstock.server.rounds import Pulse
from penstock.server.users import Users

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.log import Log
    from penstock.server.amqp.door import AmqpDoor
    from penstock.server.amqp.doors import AmqpDoors
    from penstock.server.bulk.process import Bulk
    from penstock.server.cluster.leading import Cluster
    from penstock.server.doors.door_process import Spawned
    from penstock.server.engine import Engine
    from penstock.server.flight.door import FlightDoor
    from penstock.server.http.doorway import HttpDoors
    from penstock.server.links.links import Links
    from penstock.server.listening import Entry
    from penstock.server.logins import Logins
    from penstock.server.scratch_pages import Pager, Scratch
    from penstock.server.tls import Keeper as TlsKeeper
    from penstock.server.upkeep.keeper import Keeper, Pace

Say = Callable[[str], None]


def say_aloud(text: str) -> None:
    """A line to standard output, at once: whoever waits for it may read from a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Server:
    """One instance.  What has no value here comes while it starts."""

    def __init__(self, settings: Settings, say: Say, pulse: Pulse | None = None, pools: Pools | None = None) -> None:
        """pulse: of its loop; without one its pauses are not known.  pools: others than its own threads."""
        self.settings = settings
        self.say = say
        self.pulse = pulse or Pulse()
        self.clock = SystemClock()
        self.stopping = asyncio.Event()
        self.counters = Counters()
        self.accounts = accounts_of(settings)
        self.cluster: Cluster | None = None  # of which this server is a member
        self.links: Links | None = None  # with other sites
        self.users = Users(
            settings.users,
            settings.entitlement,
            settings.server.name,
            self.accounts,
            settings.permission,
            settings.topic_permission,
            settings.server.loopback_users,
        )
        self.shares = Shares()
        self.serving = False  # the doors are open
        self.failure: BaseException | None = None  # why the process must stop
        self.recovered_records = 0
        self.recovered_seconds = 0.0
        self.tls: TlsKeeper | None = None  # where a door has TLS
        self.addresses = dict[str, str]()  # of the open doors, by name
        self.progress = Progress(self.clock.mono)
        self.pools = pools or Pools()
        self.doors: AmqpDoors | None = None  # of AMQP, where these are processes
        self.http_doors: HttpDoors | None = None  # the same of HTTP
        self.flight_process: Spawned | None = None  # of the Flight door, where it began before the server
        self.http_process: Spawned | None = None  # the same of HTTP
        self.loop: asyncio.AbstractEventLoop
        self.entry: Entry
        self.log: Log
        self.engine: Engine
        self.logins: Logins
        self.amqp: AmqpDoor
        self.bulk: Bulk
        self.flight: FlightDoor
        self.keeper: Keeper
        self.pace: Pace
        self.scratch: Scratch
        self.pager: Pager
