"""The demo of a cluster: three servers and a register on this machine, and whoever leads is killed, cut off and paused.

    make demo-cluster
    .venv/bin/python examples/demo/cluster.py --calm 2

Publishers and workers use pika with three addresses and go on by themselves.  At the end every confirmed message is
looked for, and the three logs are compared byte by byte; exit status 1 if anything is lost, doubled, out of order or
other in one of the logs, 2 if it could not be run to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cluster_clients import AGAIN, OUT_OF_ORDER, Load
from processes import Failure, adopt, sweep
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))  # its servers, its network, its etcd

from cluster_of_servers.house import Cluster, Server
from etcd_process import ETCD, Etcd
from fault_proxy import Fault, Network

LOOK_S = 0.25
PATIENCE_S = 60.0
NOTE = """\
[dim]Who is cut off or paused is missed by the others after `lease`, 5 s unless set otherwise, and by clients after
their own heartbeats, which take nine seconds here.  Who is stopped hands over.[/dim]
"""
MORE = '[[queue]]\nname = "done"\nmax_length = 1000\n'


class Event(NamedTuple):
    """What was done to a leader, and what clients saw."""

    what: str
    before: str
    after: str
    leads: float  # seconds until another one led
    gap: float
    back: float  # seconds until three disks had everything again


class Demo:
    """One run."""

    def __init__(self, console: Console, folder: Path, options: argparse.Namespace) -> None:
        self.console, self.folder = console, folder
        self.calm: float = options.calm
        self.count: int = options.events
        self.section = f'lease = "{options.lease}"'
        self.events = list[Event]()
        self.began = time.monotonic()
        self.state = ""
        self.servers = list[Server]()
        self.load = Load([])
        self.asked = dict[str, tuple[float, dict[str, Any]]]()  # what a member said, and when
        self.names = dict[str, str]()  # of members, by id

    def run(self) -> bool:
        """All of it; whether everything was right."""
        etcd = None if ETCD is None else Etcd(self.folder / "etcd")
        if etcd is not None:
            etcd.start()
        registry = "" if etcd is None else f"etcd://{etcd.client}/demo"
        try:
            with Network() as network, Cluster(
                self.folder, 3, section=self.section, more=MORE, registry=registry, network=network
            ) as cluster:  # fmt: skip
                self.servers = cluster.servers
                return self._shown(etcd is not None)
        finally:
            if etcd is not None:
                etcd.kill()

    def _shown(self, with_etcd: bool) -> bool:
        with Live(get_renderable=self._picture, console=self.console, refresh_per_second=4, transient=True):
            kind = "etcd" if with_etcd else "a folder (Debian's etcd-server is not installed)"
            self.say(f"three servers of this machine, who leads is kept in {kind}; a confirm means two disks at least")
            self.until(self._all_in_sync, "three members in sync")
            self.load = Load([one.door for one in self.servers])
            self.load.start(2, 2)
            self.until(lambda: self.load.count > 0, "the first confirm")
            self.say("two publishers and two workers at work, with pika and three addresses each")
            time.sleep(self.calm)
            events = [
                ("killed (kill -9)", self._kill), ("cut off from all", self._cut_off),
                ("paused for 12 s", self._pause), ("stopped (SIGTERM)", self._stop),
            ]  # fmt: skip
            if not with_etcd:  # nobody is cut off from a folder: who reaches it goes on, and waits for the others
                del events[1]
            for what, act in events[: self.count]:
                self._event(what, act)
            self.say("publishers rest; workers finish")
            self.load.rest()
            self.until(self._all_worked, "all worked")
            self.load.end()
            self.until(self._all_in_sync, "three members in sync")
        return self._judge()

    # -- what is done to the leader

    def _event(self, what: str, act: Callable[[Server], Callable[[], object]]) -> None:
        leader = self._leader()
        assert leader is not None
        before, load = self.load.count, self.load
        self.say(f"[bold]{leader.name}, which leads, is {what}[/bold]; {before:,} messages confirmed so far")
        began = time.monotonic()
        heal = act(leader)
        longest = leads = 0.0

        def goes_on() -> bool:
            nonlocal longest, leads
            longest = max(longest, time.monotonic() - max(began, load.confirmed_at))
            other = self._leader(leader)
            if other is not None:
                leads = leads or time.monotonic() - began
            return other is not None and load.count > before + 200 and time.monotonic() - load.confirmed_at < 0.3

        self.until(goes_on, "clients go on")
        after = self._leader(leader)
        assert after is not None
        self.say(f"{after.name} led {leads:.1f} s later; nobody had a confirm for [bold]{longest:.1f} s[/bold]")
        heal()
        self.until(self._all_in_sync, "three members in sync")
        back = time.monotonic() - began
        self.say(f"{leader.name} is back as a follower: all three in sync {back:.0f} s later")
        self.events.append(Event(what, leader.name, after.name, leads, longest, back))
        time.sleep(self.calm)

    def _kill(self, leader: Server) -> Callable[[], object]:
        leader.kill()
        return leader.start

    def _cut_off(self, leader: Server) -> Callable[[], object]:
        ways = [leader.stream_way, leader.door_way]
        if leader.register_way is not None:
            ways.append(leader.register_way)
        for way in ways:
            way.fault(Fault.CUT if way is leader.door_way else Fault.SILENT)
        for one in self.servers:
            if one is not leader:
                one.stream_way.fault(Fault.SILENT, leader.group)

        def heal() -> None:
            for one in self.servers:
                for way in (one.stream_way, one.door_way, one.register_way):
                    if way is not None:
                        way.heal()
            self._again(leader)

        return heal

    def _pause(self, leader: Server) -> Callable[[], object]:
        leader.signal(signal.SIGSTOP)
        began = time.monotonic()

        def heal() -> None:
            time.sleep(max(0.0, 12.0 - (time.monotonic() - began)))
            leader.signal(signal.SIGCONT)
            self._again(leader)

        return heal

    def _stop(self, leader: Server) -> Callable[[], object]:
        os.kill(leader.group, signal.SIGTERM)
        return lambda: self._again(leader)

    def _again(self, server: Server) -> None:
        """It ends by itself, for it may not lead any more; whatever supervises it starts it again."""
        self.until(lambda: not server.runs, f"{server.name} ended")
        assert server.process is not None
        self.say(f"{server.name} has ended by itself with status {server.process.returncode}, and is started again")
        server.start()

    # -- looking on

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Failure when it takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        self.state = f"waiting for {what}"
        while not done():
            if time.monotonic() > deadline:
                told = "\n".join(f"--- {one.name}\n{one.said()[-2000:]}" for one in self.servers)
                raise Failure(f"{what}: not after {PATIENCE_S:g} s\n{told}")
            time.sleep(LOOK_S)
        self.state = ""

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(f"[dim]{time.monotonic() - self.began:6.1f} s[/dim]  {text}", highlight=False)

    def _leader(self, *others: Server) -> Server | None:
        """Who serves, apart from these."""
        return next((one for one in self.servers if one not in others and one.runs and one.serves), None)

    def _all_in_sync(self) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        known = leader.get("/api/cluster")[1]
        self.names = {key: one["name"] for key, one in known.get("members", {}).items()}
        return len(known.get("in_sync", ())) == 3 and len(known.get("followers", ())) == 2

    def _all_worked(self) -> bool:
        return not self.load.missing()

    def _picture(self) -> Group:
        table = Table("server", "role", "term", "LSN", "in sync", "behind", title="the cluster", title_justify="left")
        now = time.monotonic()
        for server in self.servers:
            known = self._known(server, now)
            role = known.get("role", "-")
            style = {"leading": "bold green", "following": "cyan", "joining": "yellow"}.get(role, "red")
            in_sync = "yes" if known.get("member") in known.get("in_sync", ()) else "no"
            behind = known.get("leader_lsn", known.get("lsn", 0)) - known.get("lsn", 0)
            table.add_row(
                server.name, Text(role, style), str(known.get("term", "-")), f"{known.get('lsn', 0):,}",
                in_sync if known else "-", f"{max(0, behind):,}" if role != "leading" else "",
            )  # fmt: skip
        lines: list[Table | Text] = [table]
        load = self.load
        if load.count:
            since = now - load.confirmed_at
            silent = since > 0.5 and not load.resting.is_set()
            gap = f"   [bold red]no confirm for {since:.1f} s[/bold red]" if silent else ""
            lines.append(Text.from_markup(f"{load.count:,} confirmed, {len(load.worked):,} worked{gap}"))
        if self.state:
            lines.append(Text(self.state, "dim"))
        return Group(*lines)

    def _known(self, server: Server, now: float) -> dict[str, Any]:
        """What a member says, asked twice a second at most."""
        at, known = self.asked.get(server.name, (0.0, {}))
        if now - at > 0.5:
            known = server.get("/api/cluster", timeout=0.3)[1] if server.runs else {}
            self.asked[server.name] = now, known
        return known

    # -- the end

    def _judge(self) -> bool:
        console, lost = self.console, self.load.missing()
        for server in self.servers:
            server.signal(signal.SIGKILL)
        logs = self._logs()
        console.print(self._seen(), NOTE, self._proof(len(lost)), self._copies(logs), highlight=False)
        terms = ", ".join(f"{one['term']} {self.names.get(one['member'], '?')}" for one in logs.get("terms", ()))
        console.print(f"The logs are the same, byte by byte.  Who led, by term: {terms}.", highlight=False)
        good = not lost and not self.load.wrong.total() and bool(logs) and not logs["findings"]
        for one in logs.get("findings", ()):
            console.print(f"[bold red]{one['text']}[/bold red]")
        words = "Nothing that was confirmed was lost, and nothing that was settled for sure came again."
        console.print(f"\n[bold green]{words}[/]" if good else "\n[bold red]Something is wrong.[/]")
        return good

    def _seen(self) -> Table:
        table = Table("the leader is", "led", "leads", title="What clients saw", title_justify="left")
        for name in ("another leads after", "no confirm for", "all in sync after"):
            table.add_column(name, justify="right")
        for one in self.events:
            table.add_row(
                one.what, one.before, one.after, f"{one.leads:.1f} s", f"{one.gap:.1f} s", f"{one.back:.0f} s"
            )
        return table

    def _proof(self, lost: int) -> Table:
        table = Table(title="Every message accounted for", title_justify="left", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_column()
        load = self.load
        rows = [("confirmed", load.count, -1), ("confirmed, and lost", lost, 0)]
        rows += [(name, load.wrong[name], 0) for name in (AGAIN, OUT_OF_ORDER)]
        rows += [
            ("delivered again, not known to be settled when a leader went", load.again(), -1),
            ("of an outcome that nobody was told, when a leader went", load.sent - load.count, -1),
        ]
        for name, count, wanted in rows:
            mark = "" if wanted < 0 else "[green]✓[/green]" if count == wanted else "[bold red]✗[/bold red]"
            table.add_row(name, f"{count:,}", mark)
        return table

    def _copies(self, logs: dict[str, Any]) -> Table:
        table = Table("log of", title="penstock audit --members", title_justify="left")
        for name in ("last LSN", "committed up to", "records it lacks", "unconfirmed, and given up"):
            table.add_column(name, justify="right")
        for one in logs.get("copies", ()):
            kept = sum(part["rows"] for part in one["kept"])
            name = Path(one["folder"]).parent.name
            table.add_row(name, *(f"{count:,}" for count in (one["last"], one["committed"], one["lacks"], kept)))
        return table

    def _logs(self) -> dict[str, Any]:
        folders = [str(one.folder / "data") for one in self.servers]
        command = [sys.executable, "-m", "penstock", "audit", "--members", *folders, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            told: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            self.console.print(done.stderr, style="red")
            return {}
        return told


def main() -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calm", type=float, default=6.0, help="seconds between one event and the next")
    parser.add_argument("--events", type=int, default=4, help="how many of them: the first ones")
    parser.add_argument("--lease", default="5s", help="silence of the leader after which another one leads")
    options = parser.parse_args()
    console = Console()
    adopt()
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        return 0 if Demo(console, folder, options).run() else 1
    except Failure as error:
        console.print(f"demo: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print("demo: stopped; its processes and its folder go now")
        return 130
    finally:
        sweep()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
