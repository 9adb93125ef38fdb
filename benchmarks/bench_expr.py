"""How many messages a second does a filter judge on one core, on both backends, and what does compiling one cost?

Bodies are JSON objects of 1 KB with 24 fields of mixed types, judged in batches of 2,000.  `python` is given the
bodies, `arrow` an Arrow batch: it may rule a body out by its text, without a parse, and does so where few messages
match.  `parse JSON` is the floor under a filter that has to read every body.  Prints a line of JSON for each figure, in
CPU time; `--fast` measures briefly, to see that all of it runs.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Callable

import orjson

from penstock import expr
from penstock.expr.batches import batch_of
from penstock.expr.check import check
from penstock.expr.compiler import compile_tree
from penstock.expr.grammar import parse
from penstock.records.properties import EMPTY

FIVE = (
    "/total > 500 AND /region IN ('north', 'south', 'east') AND /status = 'paid'"
    " AND /customer/tier >= 2 AND /note LIKE 'gift'"
)
FIVE_FALSE = (
    "/total > 5000 OR /region IN ('up', 'down', 'under') OR /status = 'lost'"
    " OR /customer/tier >= 9 OR /note LIKE 'no such text'"
)
RARE = FIVE.replace("/status = 'paid'", "/status = 'lost'").replace("> 500", "> 1900")
GOAL = ("filter, 5 predicates", "filter, 5 predicates, all evaluated", "filter, 5 predicates, nothing matches")
FILTERS = {
    "filter, 1 predicate": "/region = 'north'",
    "filter, 5 predicates": FIVE,
    "filter, 5 predicates, all evaluated": FIVE_FALSE,
    "filter, 5 predicates, nothing matches": RARE,
    "filter, regular expression": "/note LIKE r'(?i)gift\\s+wr[aeo]p'",
    "filter, arithmetic": "/total * 2 + /lines / 3 > 700 AND /id % 7 != 3",
    "filter, arrays": "/tags = 'blue' AND /sizes > 30",
    "filter, text functions": "INSTR(UPPER(/status), 'PAI') != 0",
    "filter, no body": "MESSAGE_SIZE() > 100",
}


def bodies(count: int, seed: int = 1) -> list[bytes]:
    """Orders, about 1 KB each."""
    chance = random.Random(seed)
    words = ["gift wrap", "express", "leave at door", "fragile", "call first"]
    out: list[bytes] = []
    for number in range(count):
        order = {
            "id": number,
            "total": round(chance.uniform(1, 2000), 2),
            "lines": chance.randrange(1, 20),
            "region": chance.choice(["north", "south", "east", "west"]),
            "status": chance.choice(["paid", "paid", "open", "void"]),
            "customer": {
                "name": f"customer {number % 977}",
                "tier": chance.randrange(5),
                "mail": f"c{number}@example.org",
            },
            "note": " ".join(chance.choices(words, k=8)),
            "tags": chance.choices(["red", "blue", "green"], k=3),
            "sizes": [chance.randrange(50) for _ in range(4)],
            "paid": chance.random() < 0.5,
        }
        order |= {f"attribute_{at}": f"value {chance.randrange(10**9)} of {at}" for at in range(14)}
        text = orjson.dumps(order)
        out.append(text[:-1] + b',"pad":"' + b"x" * max(0, 1024 - len(text) - 9) + b'"}')
    return out


def best(work: Callable[[], object], least_s: float) -> float:
    """CPU seconds of the quickest of several runs that take `least_s` together."""
    quickest, spent = float("inf"), 0.0
    while spent < least_s:
        start = time.process_time()
        work()
        took = time.process_time() - start
        quickest, spent = min(quickest, took), spent + took
    return quickest


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--fast", action="store_true", help="measure briefly")
    fast = bool(options.parse_args().fast)
    machine = f"{platform.machine()} {platform.python_implementation()} {platform.python_version()}"
    least_s = 0.01 if fast else 1.0

    def show(what: str, value: float, unit: str, budget: float | None = None) -> None:
        line: dict[str, object] = {"machine": machine, "what": what, "value": round(value, 3), "unit": unit}
        if budget is not None:
            line |= {"budget": budget, "sense": "at least", "ratio": round(value / budget, 2), "met": value >= budget}
        print(json.dumps(line), flush=True)

    rows = bodies(200 if fast else 2000)
    batch = batch_of(rows, EMPTY, None, None, None)
    show("body size, mean", sum(map(len, rows)) / len(rows), "bytes")

    def parse_all() -> None:
        for row in rows:
            orjson.loads(row)

    show("parse JSON", len(rows) / best(parse_all, least_s), "messages/s")
    for what, text in FILTERS.items():
        chosen = expr.compile_filter(text)
        goal = 300_000 if what in GOAL else None
        assert sum(chosen.matches(rows)) == chosen.on_batch(batch).true_count
        rate = len(rows) / best(lambda chosen=chosen: chosen.matches(rows), least_s)  # type: ignore[misc]
        show(f"{what}, python", rate, "messages/s", goal)
        rate = len(rows) / best(lambda chosen=chosen: chosen.on_batch(batch), least_s)  # type: ignore[misc]
        show(f"{what}, arrow", rate, "messages/s", goal)

    def compile_anew() -> None:
        checked = check(parse(FIVE), FIVE)
        compile_tree(checked.tree, "filter", checked.metered)

    show("compile a filter, 5 predicates", best(compile_anew, least_s) * 1e3, "ms")


if __name__ == "__main__":
    main()
