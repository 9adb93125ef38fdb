"""The demo of sites: two servers that share a queue; one is cut off, one is killed, and an operator has one act for it.

    make demo-sites
    .venv/bin/python examples/demo/sites.py --calm 1

Messages are published at both, worked at both, and wherever there is no worker, at the other.  At the end every
confirmed message is looked for; exit status 1 if one was lost, or given twice without a reason that docs/links.md
names, 2 if it could not be run to its end.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from processes import Failure, adopt, sweep
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))  # its servers and its network

from fault_proxy import Fault, Network
from sites.house import Sites
from sites.load import Books, Publisher, Worker

PATIENCE_S = 60.0


class Step(NamedTuple):
    """What was done, and what came of it meanwhile."""

    what: str
    confirmed: dict[str, int]  # at each site
    worked: dict[str, int]
    crossed: int  # published at one, worked at the other


class Demo:
    """One run."""

    def __init__(self, console: Console, folder: Path, calm: float) -> None:
        self.console, self.folder, self.calm = console, folder, calm
        self.books = Books()
        self.steps = list[Step]()
        self.began = time.monotonic()
        self.sites: Sites

    def run(self) -> bool:
        """All of it; whether everything was right."""
        with Network() as network, Sites(self.folder, "ab", network=network) as self.sites:
            self.sites.linked()
            self.say("sites a and b are up and linked both ways; queue [bold]work[/bold] is one queue of both")
            publishers = {site.name: Publisher(site, self.books, 0.005) for site in self.sites}
            workers = {site.name: Worker(site, self.books) for site in self.sites}
            for one in (*publishers.values(), *workers.values()):
                one.start()
            self._step("both publish, both work", lambda: None)
            self._step("a has no worker: b asks for its messages", workers["a"].resting.set)
            self._step("the sites are cut off from each other", self._cut)
            self._step("a works again, by itself", workers["a"].resting.clear)
            self._step("healed", self._heal)
            self._step("b is killed (kill -9) and started again", self._kill)
            self.say("publishers rest; workers finish")
            for publisher in publishers.values():
                publisher.end()
            self.until(lambda: not self.books.left(), "all worked")
            self.sites.empty()
            for worker in workers.values():
                worker.end()
            return self._judge()

    def _step(self, what: str, act: Callable[[], object]) -> None:
        confirmed, worked, crossed = self._confirmed(), self._worked(), self._crossed()
        self.say(f"[bold]{what}[/bold]")
        act()
        time.sleep(self.calm)
        self.steps.append(
            Step(
                what,
                {name: count - confirmed[name] for name, count in self._confirmed().items()},
                {name: count - worked[name] for name, count in self._worked().items()},
                self._crossed() - crossed,
            )
        )

    def _cut(self) -> None:
        for way in self.sites.ways.values():
            way.fault(Fault.CUT)

    def _heal(self) -> None:
        for way in self.sites.ways.values():
            way.heal()
        self.sites.linked()

    def _kill(self) -> None:
        self.sites["b"].kill()
        self.books.killed("b")
        self.sites["b"].start()
        self.sites.linked()

    # -- looking on

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Failure when it takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            if time.monotonic() > deadline:
                told = "\n".join(f"--- {one.name}\n{one.output()[-2000:]}" for one in self.sites)
                raise Failure(f"{what}: not after {PATIENCE_S:g} s\n{told}")
            time.sleep(0.1)

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(f"[dim]{time.monotonic() - self.began:6.1f} s[/dim]  {text}", highlight=False)

    def _confirmed(self) -> dict[str, int]:
        found = self.books.told()
        return {name: sum(body.startswith(name.encode()) for body in found) for name in "ab"}

    def _worked(self) -> dict[str, int]:
        found = [site for _, site in self.books.worked()]
        return {name: found.count(name) for name in "ab"}

    def _crossed(self) -> int:
        return sum(not body.startswith(site.encode()) for body, site in self.books.worked())

    # -- the end

    def _judge(self) -> bool:
        table = Table("step", title="What went on at the sites", title_justify="left")
        for name in ("confirmed at a", "at b", "worked at a", "at b", "worked elsewhere"):
            table.add_column(name, justify="right")
        for step in self.steps:
            counts = (*step.confirmed.values(), *step.worked.values(), step.crossed)
            table.add_row(step.what, *(f"{count:,}" for count in counts))
        books, wrong = self.books, self.books.wrong()
        double = sum(site.queue()["double"] for site in self.sites)
        proof = Table(title="Every message accounted for", title_justify="left", show_header=False)
        proof.add_column()
        proof.add_column(justify="right")
        proof.add_column()
        rows = [
            ("confirmed", len(books.confirmed), -1),
            ("confirmed, and never worked", len(books.left()), 0),
            ("given twice, without a site that was killed meanwhile", len(wrong), 0),
            ("given once more after a kill", books.again() - len(wrong), -1),
            ("known to two sites as their own (double)", double, 0),
            ("left in the queue of either site", sum(site.waiting() for site in self.sites), 0),
        ]
        for name, count, wanted in rows:
            mark = "" if wanted < 0 else "[green]✓[/green]" if count == wanted else "[bold red]✗[/bold red]"
            proof.add_row(name, f"{count:,}", mark)
        self.console.print(table, proof, highlight=False)
        for line in wrong[:10]:
            self.console.print(line, style="red", highlight=False)
        good = not wrong and not books.left() and not double
        words = "Nothing that was confirmed was lost, and each message was worked once."
        self.console.print(f"\n[bold green]{words}[/]" if good else "\n[bold red]Something is wrong.[/]")
        return good


def main() -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calm", type=float, default=4.0, help="seconds that each step lasts")
    options = parser.parse_args()
    console = Console()
    adopt()
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        return 0 if Demo(console, folder, options.calm).run() else 1
    except (Failure, AssertionError) as error:
        console.print(f"[bold red]it could not be run to its end:[/] {error}", highlight=False)
        return 2
    finally:
        sweep()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
