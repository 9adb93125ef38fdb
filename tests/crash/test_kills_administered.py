"""kill -9 under what administrators do: purges, moves, redrives, settings, queues declared anew, long uploads, replays,
recoveries, backups, compaction and archive, all at once on one server, again and again on one folder.

`PENSTOCK_KILLS` sets how often (a third of it, twice in a usual run), `PENSTOCK_SEED` repeats a run's choices (not its
timing).
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from crash.administered import DEEDS, Deed, Replays, Server, Tends
from crash.test_kills import KILLS, PART, SEED, audit
from live_server import LiveServer
from penstock import PenstockError

pytestmark = pytest.mark.crash

LIVES = max(2, (KILLS - 4) // 3)

PLAIN = """
[server]
doors = 2
[log]
checkpoint_bytes = "64KiB"
"""
ARCHIVED = """
[server]
doors = 2
[log]
segment = "64KiB"
retention = { age = "0s" }
archive = { topics = 1 }
checkpoint_bytes = "64KiB"
"""


class Doer(threading.Thread):
    """Does one deed until the server is killed.  What fails before that, or cannot be explained, is in `failure`."""

    def __init__(self, deed: Deed, server: Server) -> None:
        super().__init__(name=type(deed).__name__)
        self.deed, self.server = deed, server
        self.stopping, self.killing = threading.Event(), threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with penstock.connect(self.server.url, timeout=20) as client:
                while not self.stopping.is_set():
                    self.deed.work(client, self.server)
        except (PenstockError, OSError) as error:
            if not self.killing.is_set():
                self.failure = error
        except BaseException as failure:  # noqa: BLE001 - the test reports it
            self.failure = failure


def doers(deeds: Sequence[Deed], server: Server) -> list[Doer]:
    team = [Doer(deed, server) for deed in deeds]
    for one in team:
        one.start()
    return team


def end(team: Sequence[Doer], where: str) -> None:
    for one in team:
        one.stopping.set()
    for one in team:
        one.join(90)
        assert not one.is_alive(), f"{where}: {one.name} does not end"
        if one.failure is not None:
            raise AssertionError(f"{where}: {one.name}: {one.failure!r}") from one.failure


@pytest.mark.parametrize("settings", [ARCHIVED, PLAIN] if KILLS > 10 else [ARCHIVED])
def test_kills_of_administration(settings: str, tmp_path: Path) -> None:
    rnd = random.Random(SEED)
    (tmp_path / "penstock.toml").write_text(settings)
    live = LiveServer(tmp_path / "house", [str(tmp_path / "penstock.toml"), "--sync", "commit"], flight=True)
    kinds = [kind for kind in DEEDS if kind is not (Replays if settings is ARCHIVED else Tends)]
    deeds = [kind(rnd.randrange(1 << 30), tmp_path) for kind in kinds]
    print(f"PENSTOCK_SEED={SEED} PENSTOCK_KILLS={KILLS}: {LIVES} lives")
    with live:
        server = Server(f"penstock://{live.ready['flight']}", live.data)
        with penstock.connect(server.url) as client:
            for deed in deeds:
                deed.prepare(client)
        for life in range(LIVES):
            where = f"PENSTOCK_SEED={SEED}, life {life}"
            some = rnd.sample(deeds, rnd.randint(2, 5))
            team = doers(some, server)
            time.sleep(rnd.uniform(0.2, 2.5) * PART)  # a kill comes at any moment
            for one in team:
                one.killing.set()
            live.kill()
            end(team, where)
            live.start()
            server = Server(f"penstock://{live.ready['flight']}", live.data)
            with penstock.connect(server.url) as client:
                for deed in some if life < LIVES - 1 else deeds:
                    try:
                        deed.judge(client, server)
                    except AssertionError as error:
                        error.add_note(where)
                        raise
        done = sum((deed.done for deed in deeds), Counter[str]())
        print(dict(done))
        with suppress(PenstockError), penstock.connect(server.url) as client:
            print(client.health()["status"])
    assert "Traceback" not in live.output(), live.output()
    audit(live.data)
