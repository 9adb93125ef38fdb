"""What the demo leaves: a table on the screen, a picture, a page.

Owns wording and looks; figures and measurements come in finished.
"""

from __future__ import annotations

import html
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pyarrow.parquet as pq
from findings import Figure
from matplotlib.axes import Axes
from measuring import Audit, Latency, Measured
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from watching import History

INK, PALE, RED = "#1d2733", "#8896a5", "#c0392b"
BLUE, GREEN, ORANGE = "#2166ac", "#3a8f5c", "#d9822b"

FIRST_BATCH_S = 5.0

plt.rcParams.update(
    {
        "font.size": 9.5,
        "axes.edgecolor": PALE,
        "axes.labelcolor": INK,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": INK,
        "ytick.color": INK,
        "svg.fonttype": "none",
    }
)

NEXT = (
    ("penstock serve", "a server of your own; AMQP on 5672, HTTP on 15672, Flight on 8815"),
    ("penstock --help", "publish, consume, peek, look into the log"),
    ("examples/demo/demo.toml", "the queues, the dead letters and the pipeline of this demo"),
    ("examples/demo/workers.py", "workers with pika and with our client"),
    ("make bench", "speed and memory beside their budgets"),
    ("ARCHITECTURE.md", "how it is built; docs/rules.md: where each rule is enforced"),
)


def audit(data: Path) -> Audit:
    """`penstock audit` over the log of a stopped server.  That it cannot be run is a finding too."""
    command = [sys.executable, "-m", "penstock", "audit", "--data", str(data), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = "".join(done.stderr.strip().splitlines()[-1:])
        return Audit({}, [f"penstock audit ended with status {done.returncode}: {last}"])
    return Audit(said["counts"], [f"{one['guarantee']}: {one['text']}" for one in said["findings"]])


def tell(
    console: Console,
    folder: Path,
    figures: Sequence[Figure],
    measured: Measured,
    history: History,
    delays: Path | None,
) -> bool:
    """The whole report; whether every figure was right."""
    folder.mkdir(parents=True, exist_ok=True)
    good = all(figure.good for figure in figures)
    console.print(_figures(figures))
    console.print(_pairs("How it went", speeds(measured)))
    console.print(_pairs("penstock audit", audited(measured)))
    plots = _Plots(measured, history, delays)
    plots.picture(folder / "demo.png")
    (folder / "demo.html").write_text(_page(figures, measured, plots, good))
    said = {"good": good, "figures": [asdict(figure) | {"good": figure.good} for figure in figures]}
    (folder / "figures.json").write_text(json.dumps(said, indent=1))
    wrong = sum(not figure.good for figure in figures)
    if good:
        console.print(f"\n[bold green]All {len(figures)} figures are as computed from the data set.[/bold green]")
    else:
        console.print(f"\n[bold red]{wrong} of {len(figures)} figures are wrong.[/bold red]")
    console.print(f"Pictures: {folder / 'demo.html'} and {folder / 'demo.png'}", highlight=False, soft_wrap=True)
    console.print("\n[bold]What to try next[/bold]")
    for what, why in NEXT:
        console.print(f"  {what:26} [dim]{why}[/dim]", highlight=False)
    return good


def _figures(figures: Sequence[Figure]) -> Table:
    table = Table(title="Every figure beside the truth", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("figure")
    table.add_column("data set says", justify="right")
    table.add_column("found", justify="right")
    table.add_column("")
    last = ""
    for figure in figures:
        if last and figure.group != last:
            table.add_section()
        mark = "[green]✓[/green]" if figure.good else "[bold red]✗[/bold red]"
        found = _shown(figure.found) if figure.good else f"[bold red]{_shown(figure.found)}[/bold red]"
        group = figure.group if figure.group != last else ""
        table.add_row(f"[bold]{group}[/bold]", figure.what, _shown(figure.expected), found, mark)
        last = figure.group
    return table


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _time(seconds: float) -> str:
    if seconds != seconds:
        return "-"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 0.01:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds * 1e3:.2f} ms"


def _quantiles(one: Latency) -> str:
    return f"p50 {_time(one.at(0.5))}, p99 {_time(one.at(0.99))}"


def speeds(measured: Measured) -> list[tuple[str, str]]:
    """Rates, latencies and what happened on the way, as (what, how much)."""
    m = measured
    rows = [
        (
            "published by 4 pika processes",
            f"{m.pika.each_second:,.0f} messages/s, each confirmed after its sync",
        ),
        ("  confirm, up to 512 in flight each", _quantiles(m.confirms)),
        ("published over Flight, held to a pace", f"{m.flight.each_second:,.0f} messages/s, the outage included"),
        ("  upload of 2,000 rows until durable", _quantiles(m.uploads)),
        ("stored until in an SDK worker's hands", f"{_quantiles(m.delivered)} (with what waited before it)"),
        ("stored until seen by the watcher", _quantiles(m.watched)),
    ]
    rows += [(f"one at a time, quiet server, until {name}", _quantiles(one)) for name, one in m.quiet.items()]
    if m.recovered:
        rows.append(
            (
                "kill -9 until the doors were open again",
                f"{m.outage:.1f} s, of it {m.recovered['seconds']:.2f} s reading {m.recovered['records']:,} records",
            )
        )
    rows += [
        ("rows of uploads sent again after the kill", f"{m.resent:,}, of which {m.suppressed:,} were stored already"),
        ("flights worked more than once", f"{m.worked_twice:,} (at least once; counted once above)"),
        ("good deliveries marked as redelivered", f"{m.redelivered:,} (so is all that waited at the kill)"),
        ("deliveries on which a worker failed", f"{m.failures:,}"),
    ]
    if m.commits:
        rows.append(("batches of the Spark pipeline", f"{m.commits:,}, each visible in both outputs, once"))
    return rows


def audited(measured: Measured) -> list[tuple[str, str]]:
    """What the audit counted, record kinds left out, and its verdict."""
    counts = [(name, f"{count:,}") for name, count in measured.audit.counts.items() if not name.startswith("records ")]
    found = measured.audit.findings
    return [*counts, ("verdict", "; ".join(found) if found else "every guarantee held")]


def _pairs(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column()
    table.add_column()
    for what, how in rows:
        table.add_row(escape(what), escape(how))
    return table


class _Plots:
    """The plots, each drawn onto axes that somebody gives."""

    def __init__(self, measured: Measured, history: History, delays: Path | None) -> None:
        self.measured = measured
        self.history = history
        self.delays = delays

    def picture(self, path: Path) -> None:
        """All of them as one PNG."""
        if self.delays is not None:
            rows = [["heat", "heat"], ["time", "latency"]]
            figure, axes = plt.subplot_mosaic(rows, figsize=(13, 9.5), dpi=110, height_ratios=[1.15, 1])
            self.heat(axes["heat"])
        else:
            figure, axes = plt.subplot_mosaic([["time", "latency"]], figsize=(13, 5), dpi=110)
        self.time(axes["time"])
        self.latency(axes["latency"])
        figure.tight_layout(h_pad=2.5, w_pad=3)
        figure.savefig(path)
        plt.close(figure)

    def each(self) -> list[str]:
        """Each as SVG text."""
        drawn = [(self.time, (10, 4)), (self.latency, (10, 3.6))]
        if self.delays is not None:
            drawn.insert(0, (self.heat, (10, 4.8)))
        out = list[str]()
        for draw, size in drawn:
            figure, axes = plt.subplots(figsize=size)
            draw(axes)
            figure.tight_layout()
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None})
            plt.close(figure)
            out.append(text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2])
        return out

    def heat(self, axes: Axes) -> None:
        """Mean delay by carrier and scheduled hour, from Spark's Parquet."""
        assert self.delays is not None
        rows = [row for row in pq.read_table(self.delays.resolve()).to_pylist() if row["mean_delay"] is not None]
        flights = dict[str, int]()
        for row in rows:
            flights[row["carrier"]] = flights.get(row["carrier"], 0) + row["flights"]
        carriers = sorted(flights, key=lambda one: flights[one])
        hours = sorted({row["hour"] for row in rows})
        field = np.full((len(carriers), len(hours)), np.nan)
        for row in rows:
            field[carriers.index(row["carrier"]), hours.index(row["hour"])] = row["mean_delay"]
        mesh = axes.pcolormesh(field, cmap="RdBu_r", vmin=-40, vmax=40, edgecolors="white", linewidth=1.2)
        for (y, x), value in np.ndenumerate(field):
            if not np.isnan(value):
                colour = "white" if abs(value) > 26 else INK
                axes.text(x + 0.5, y + 0.5, f"{round(value)}", ha="center", va="center", fontsize=7.5, color=colour)
        axes.set_xticks(np.arange(len(hours)) + 0.5, [f"{hour:02}" for hour in hours])
        axes.set_yticks(np.arange(len(carriers)) + 0.5, carriers)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("scheduled hour of departure")
        axes.set_title("Mean arrival delay in minutes, by carrier and hour: what Spark wrote to Parquet")
        bar = axes.figure.colorbar(mesh, ax=axes, pad=0.015, extend="both", aspect=28)
        bar.outline.set_visible(False)  # type: ignore[operator]

    def time(self, axes: Axes) -> None:
        """Messages a second over time, the outage marked."""
        history = self.history
        times = np.array(history.times)
        counts = {name: np.maximum.accumulate(np.array(some)) for name, some in history.counts.items()}
        lines = [("published", counts["pika"] + counts["flight"], BLUE), ("worked", counts["worked"], GREEN)]
        if "spark" in counts:
            lines.append(("through Spark", counts["spark"], ORANGE))
        grid = np.arange(0, times[-1] + 0.5, 0.5)
        top = 0.0
        for name, line, colour in lines:
            width = 1.5
            known, level = (times, line) if name != "through Spark" else _between_batches(times, line)
            rate = (np.interp(grid + width / 2, known, level) - np.interp(grid - width / 2, known, level)) / width
            axes.plot(grid, rate, color=colour, linewidth=1.8, label=name)
            axes.fill_between(grid, rate, color=colour, alpha=0.08)
            top = max(top, float(rate.max()))
        if history.killed is not None and history.back is not None:
            axes.axvspan(history.killed, max(history.back, history.killed + 0.2), color=RED, alpha=0.18, linewidth=0)
            axes.axvline(history.killed, color=RED, linewidth=1.2)
            axes.annotate(
                f"kill -9, back after {history.back - history.killed:.1f} s",
                (history.killed, top * 1.05),
                xytext=(-6, 0),
                textcoords="offset points",
                ha="right",
                color=RED,
                fontweight="bold",
            )
        axes.set_xlim(0, times[-1])
        axes.set_ylim(0, top * 1.12)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
        axes.grid(axis="y", color="#e6eaee", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel("seconds")
        axes.set_title("Messages a second")
        axes.legend(
            frameon=False,
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            borderaxespad=0.2,
            ncols=3,
            fontsize=8.5,
            columnspacing=1.2,
        )

    def latency(self, axes: Axes) -> None:
        """Latencies on a logarithmic scale."""
        m = self.measured
        shown = [
            ("pika publish until confirmed", m.confirms, BLUE),
            ("stored until in a worker's hands", m.delivered, GREEN),
        ]
        shown += [
            (f"quiet server, publish until {name}", one, colour)
            for (name, one), colour in zip(m.quiet.items(), (ORANGE, RED), strict=True)
        ]
        shown = [(name, one, colour) for name, one, colour in shown if one.known]
        low = min(one.at(0.0) for _, one, _ in shown) * 1e3
        high = max(one.at(1.0) for _, one, _ in shown) * 1e3
        bins = np.geomspace(max(low, 0.01), max(high, 1.0), 70)
        for name, one, colour in shown:
            values = one.seconds * 1e3
            weights = np.full(len(values), 100 / len(values))
            label = f"{name}: p50 {_time(one.at(0.5))}, p99 {_time(one.at(0.99))}"
            axes.hist(values, bins, weights=weights, histtype="stepfilled", color=colour, alpha=0.15)
            axes.hist(values, bins, weights=weights, histtype="step", color=colour, linewidth=1.5, label=label)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("milliseconds")
        axes.set_ylabel("% of messages")
        axes.set_title("Latency")
        axes.margins(y=0.45)
        axes.legend(frameon=False, loc="upper left", fontsize=8.5)


def _between_batches(times: Any, line: Any) -> tuple[Any, Any]:
    """The points where a count that grows by batches has grown, so that a line through them shows the mean rate.

    The first batch is drawn as if it had taken `FIRST_BATCH_S`, for Spark was starting before.
    """
    steps = np.flatnonzero(np.diff(line, prepend=0))
    if not len(steps):
        return times, line
    first = max(0.0, float(times[steps[0]]) - FIRST_BATCH_S)
    return np.concatenate([[first], times[steps]]), np.concatenate([[0], line[steps]])


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Penstock demo</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1d2733; margin: 2.5rem auto; max-width: 62rem;
  padding: 0 1.25rem }}
h1 {{ margin-bottom: .2rem }} h2 {{ margin-top: 2.5rem }}
.verdict {{ display: inline-block; padding: .35rem .8rem; border-radius: .4rem; color: white; background: {colour} }}
table {{ border-collapse: collapse; width: 100%; font-size: .92rem }}
th, td {{ text-align: left; padding: .32rem .6rem; border-bottom: 1px solid #e6eaee; vertical-align: top }}
.number {{ text-align: right; font-variant-numeric: tabular-nums }}
.wrong {{ background: #fbe9e7 }} .group {{ font-weight: 600 }}
svg {{ width: 100%; height: auto }} svg text {{ font-family: system-ui, sans-serif }}
code {{ background: #f2f4f6; padding: .1rem .3rem; border-radius: .2rem }}
</style></head><body>
<h1>Penstock demo</h1>
<p>A year of flights, published over AMQP and Arrow Flight, worked on by workers that crash, aggregated by Spark; the
server killed with <code>kill -9</code> in the middle.</p>
<p class="verdict">{verdict}</p>
{plots}
<h2>Every figure beside the truth</h2>
<table>
<tr><th></th><th>figure</th><th class="number">data set says</th><th class="number">found</th><th></th></tr>
{figures}
</table>
<h2>How it went</h2>
<table>{speeds}</table>
<h2><code>penstock audit</code></h2>
<table>{audited}</table>
<h2>What to try next</h2>
<table>{next}</table>
</body></html>
"""


def _page(figures: Sequence[Figure], measured: Measured, plots: _Plots, good: bool) -> str:
    rows = list[str]()
    last = ""
    for figure in figures:
        group = figure.group if figure.group != last else ""
        last = figure.group
        rows.append(
            f'<tr{"" if figure.good else " class=wrong"}><td class="group">{html.escape(group)}</td>'
            f'<td>{html.escape(figure.what)}</td><td class="number">{_shown(figure.expected)}</td>'
            f'<td class="number">{_shown(figure.found)}</td><td>{"✓" if figure.good else "✗"}</td></tr>'
        )
    wrong = sum(not figure.good for figure in figures)
    return PAGE.format(
        colour=GREEN if good else RED,
        verdict=f"All {len(figures)} figures are right" if good else f"{wrong} of {len(figures)} figures are wrong",
        plots="\n".join(plots.each()),
        figures="\n".join(rows),
        speeds=_rows(speeds(measured), "{}"),
        audited=_rows(audited(measured), "{}"),
        next=_rows(NEXT, "<code>{}</code>"),
    )


def _rows(pairs: Sequence[tuple[str, str]], first: str) -> str:
    """Rows of two cells."""
    return "\n".join(
        f"<tr><td>{first.format(html.escape(what.strip()))}</td><td>{html.escape(how)}</td></tr>" for what, how in pairs
    )
