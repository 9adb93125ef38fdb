"""Who says who leads in a soak of `registry = "manual"`: a person that looks, and has a member lead by the command.

`--lose` is said only where two lead, and one goes on whose term has confirmed something: with two of three disks for a
confirm the other one's has not.  So nothing that was confirmed may be lost over any of it.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from cluster_of_servers.house import Cluster, Server
from forked import penstock

LOOK_S = 0.5
SILENCE_S = 6.0
"""So long nobody serves before somebody is told to lead."""

SECONDS = 30.0
"""A command that takes longer is given up: its server may be paused."""


def promote(server: Server, *more: str) -> str:
    """What the command says; empty: it is done."""
    done = penstock("cluster", "promote", server.name, str(server.settings), *more, seconds=SECONDS)
    return "" if done.returncode == 0 else done.stdout + done.stderr


class Person(threading.Thread):
    """Looks until `over`."""

    def __init__(self, cluster: Cluster, counts: Counter[str], say: Callable[[str], object]) -> None:
        super().__init__(name="the person who says who leads", daemon=True)
        self.cluster, self.counts, self.say = cluster, counts, say
        self.over = threading.Event()
        self.cut_off = set[Server]()  # known to be so: nobody would have one of them lead
        self._silent_since = time.monotonic()

    def run(self) -> None:
        while not self.over.wait(LOOK_S):
            with suppress(TimeoutError, OSError, StopIteration):
                self._look()

    def has_lead(self, servers: list[Server]) -> bool:
        """Have one of them lead that is in sync; False: none is."""
        for server in servers:
            if not (why := promote(server)):
                self.counts["promoted"] += 1
                self.say(f"{server.name} told to lead")
                return True
            if "it would be set aside" in why:
                self._decide()
                return True
        return False

    def _look(self) -> None:
        if any(one.runs and one.serves for one in self.cluster.servers):
            self._silent_since = time.monotonic()
        elif time.monotonic() - self._silent_since > SILENCE_S:
            there = [one for one in self.cluster.servers if one.runs and one not in self.cut_off]
            random.shuffle(there)
            self.has_lead(there)
            self._silent_since = time.monotonic()

    def _decide(self) -> None:
        """Two lead: one whose term has confirmed something goes on."""
        found = list[tuple[bool, int, Server]]()
        for n, one in enumerate(self.cluster.servers):
            told = json.loads(penstock("cluster", "status", str(one.settings), "--json", seconds=SECONDS).stdout)
            found.append((told["committed"] >= told["terms"][-1]["start"], n, one))
        server = max(found)[2]
        why = promote(server)
        asked = re.findall(r"--lose (\d+)", why)
        if asked and not promote(server, "--lose", asked[-1]):
            self.counts["set aside"] += 1
            self.say(f"two led: {server.name} told to lead, and the other to be set aside")
