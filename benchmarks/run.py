"""`make bench`: every benchmark, one table, and `benchmarks/results/*.jsonl`.

    python benchmarks/run.py [--quick] [--only NAME] [--out FOLDER] [--json]
    PENSTOCK_BENCH=short make bench

Each benchmark is a program of its own in this folder (`bench_*.py`) that prints one line of JSON a figure; its lines go
to `results/NAME.jsonl`, which is written anew.  A figure beyond its budget is shown and is no failure; a benchmark that
fails, which is what a lost message does, makes the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
ORDER = (
    "start", "amqp", "clients", "flight", "memory", "memory_bound", "depth", "restart", "recovery", "drain", "filters",
)  # fmt: skip
"""These first, in the order of the table; then all others by name."""

QUICK = {"expr": ["--fast"], "log": ["--fast"], "fold": ["--records", "100000"]}
"""What stands for `--quick` where a benchmark measures a part without a server and has options of its own."""

SHORT = {
    "views": ["--messages", "100000", "--repeat", "1"],
    "tls": ["--messages", "100000", "--repeat", "1"],
    "amqp": ["--messages", "100000", "--repeat", "1"],
    "clients": ["--seconds", "3", "--repeat", "1"],
    "flight": ["--repeat", "1"],
    "sites": ["--messages", "100000", "--repeat", "1"],
    "doors": ["--repeat", "1"],
    "connections": ["--messages", "2000"],
    "memory": ["--messages", "1000000"],
    "depth": ["--messages", "200000"],
    "restart": ["--messages", "1000000"],
    "recovery": ["--messages", "1000000", "--repeat", "1"],
    "drain": ["--messages", "1000000"],
    "filters": ["--messages", "1000000", "--repeat", "1"],
    "replay": ["--messages", "10000", "--repeat", "1"],
    "log": ["--fast"],
    "fold": ["--records", "1000000"],
    "expr": ["--fast"],
}
"""What `PENSTOCK_BENCH=short` adds: minutes instead of an hour, and budgets that still mean something."""

WHOLE = {"memory_bound": ["--whole"]}
"""What a full run adds."""


def names() -> list[str]:
    """Every benchmark there is, but for those with Spark: see `run_spark`."""
    found = {path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py")}
    found = {name for name in found if not name.startswith("spark_")}
    return [name for name in ORDER if name in found] + sorted(found.difference(ORDER))


def added(name: str, *, quick: bool) -> list[str]:
    """The options that the length of the run stands for; those of the command line come after and win."""
    if quick:
        return QUICK.get(name, ["--quick"])
    return (SHORT if os.environ.get("PENSTOCK_BENCH") == "short" else WHOLE).get(name, [])


def run(name: str, arguments: list[str], out: Path, console: Console) -> tuple[list[dict[str, Any]], int]:
    """Run one, showing each figure as it comes; its figures and exit status."""
    figures: list[dict[str, Any]] = []
    command = [sys.executable, str(HERE / f"bench_{name}.py"), *arguments]
    path = os.pathsep.join(filter(None, [str(HERE.parent / "src"), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": path}
    lines = out / f"{name}.jsonl"
    with lines.open("w") as kept, subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            figure = _figure(line)
            if line.startswith("{"):
                kept.write(line)
                kept.flush()
            if figure is None:
                console.print(line.rstrip(), style="dim", markup=False)
                continue
            figures.append(figure)
            console.print(f"[dim]{name}: {figure['what']}: {shown(figure['value'])} {figure['unit']}")
    return figures, child.returncode


def _figure(line: str) -> dict[str, Any] | None:
    """A figure, or None for a line that is none."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and {"what", "value", "unit"} <= value.keys() else None


def shown(value: float) -> str:
    """A number for a person."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table(title: str, figures: list[dict[str, Any]]) -> Table:
    """what | value | budget | ratio; a ratio on the wrong side of 1 is red."""
    out = Table(title=title, title_justify="left")
    out.add_column("what")
    for name in ("value", "unit", "budget", "ratio"):
        out.add_column(name, justify="left" if name == "unit" else "right", no_wrap=True)
    for figure in figures:
        budget, ratio = figure.get("budget"), figure.get("ratio")
        sign = {"at least": "≥ ", "at most": "≤ "}.get(figure.get("sense", ""), "")
        colour = {"True": "[green]", "False": "[bold red]"}.get(str(figure.get("met")), "")
        out.add_row(
            str(figure["what"]),
            shown(figure["value"]),
            str(figure["unit"]),
            "" if budget is None else f"{sign}{shown(budget)}",
            "" if ratio is None else f"{colour}{ratio:.2f}",
        )
    return out


def main(offered: Callable[[], list[str]] = names) -> int:
    """Run them; 1 if one failed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="a few messages each: shows that it works")
    options.add_argument("--only", action="append", choices=offered(), help="may be repeated")
    options.add_argument("--out", type=Path, default=HERE / "results", help="where the JSON lines go")
    options.add_argument("--json", action="store_true", help="one list on standard output; the table on the other")
    given, rest = options.parse_known_args()
    given.out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, soft_wrap=True, stderr=given.json)
    if not console.is_terminal:
        console.width = 130
    all_figures: list[dict[str, Any]] = []
    failed: list[str] = []
    started = time.perf_counter()
    for name in given.only or offered():
        figures, status = run(name, [*added(name, quick=given.quick), *rest], given.out, console)
        all_figures += figures
        if status != 0:
            failed.append(name)
    missed = [figure for figure in all_figures if figure.get("met") is False]
    if given.json:
        print(json.dumps(all_figures, indent=2))
    title = "A quick run: it works, and its figures mean nothing" if given.quick else "Each figure beside its budget"
    console.print(table(title, all_figures))
    judged = sum(figure.get("budget") is not None for figure in all_figures)
    seconds = time.perf_counter() - started
    console.print(f"{judged - len(missed)} of {judged} budgets met, in {seconds:.0f} s; lines in {given.out}")
    for name in failed:
        console.print(f"[bold red]bench_{name}.py failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
