"""`bench deep`: a queue filled far beyond what anybody takes, then emptied: how fast, and what it costs in memory.

What waits is meant to cost a few bytes a message, wherever its body is, and the first delivery not to wait for all that
lies behind it.  Memory is that of the server process as it tells it, so other work on the server counts with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.benching import Backlog, Setting, Size, own_queue, send, take
from penstock.cli.output import DEFAULT_URL, Json, Url, bar, connect, write_json, write_table

if TYPE_CHECKING:
    from penstock.client import Client

FILLED_BATCH = 10_000
"""Messages that are published at once while it is filled."""


def add_to(app: typer.Typer) -> None:
    app.command()(deep)


def deep(
    count: Annotated[int, typer.Option("--count", min=1, help="How many messages deep.")] = 1_000_000,
    size: Size = 100,
    backlog: Backlog = 5000,
    setting: Setting = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Fill a queue, and only then take everything: first delivery, speed both ways, memory of the server.

    Example: penstock bench deep --count 5000000 --size 1000
    """
    with connect(url) as client:
        memory = {"before": resident(client)}
        with own_queue(client, setting) as name:
            with bar("filling") as moved:
                began = time.perf_counter()
                send(client, name, count, size, FILLED_BATCH, moved)
                filled = time.perf_counter() - began
            memory["full"] = resident(client)
            with bar("draining") as moved:
                first, drained = drain(client, name, count, backlog, moved)
            memory["drained"] = resident(client)
    tell(figures(count, size, filled, first, drained, memory), as_json=json)


def drain(
    client: Client, queue: str, count: int, backlog: int, moved: Callable[[int, int], None]
) -> tuple[float, float]:
    """Take everything: seconds until the first message was here, and until the last one was settled."""
    began, first = time.perf_counter(), 0.0
    for _ in take(client, queue, count, backlog, moved):
        first = first or time.perf_counter() - began
    return first, time.perf_counter() - began


def resident(client: Client) -> int:
    """Bytes that the server process has in memory."""
    return int(client.overview()["resident_bytes"])


def figures(
    count: int, size: int, filled: float, first: float, drained: float, memory: dict[str, int]
) -> dict[str, Any]:
    """The result as JSON has it; memory in bytes."""
    return {
        "bench": "deep",
        "messages": count,
        "bytes": size,
        "fill_seconds": round(filled, 6),
        "fill_per_second": round(count / filled, 1),
        "first_delivery_ms": round(first * 1e3, 3),
        "drain_seconds": round(drained, 6),
        "drain_per_second": round(count / drained, 1),
        "memory": memory,
        "memory_a_message": round((memory["full"] - memory["before"]) / count, 1),
    }


def tell(found: dict[str, Any], *, as_json: bool) -> None:
    """The figures; memory as the server's process has it."""
    if as_json:
        write_json(found)
        return
    row = (
        found["bench"], f"{found['messages']:,}", found["bytes"], f"{found['fill_per_second']:,.0f}",
        f"{found['first_delivery_ms']:.1f} ms", f"{found['drain_per_second']:,.0f}",
    )  # fmt: skip
    write_table(("bench", "messages", "of bytes", "filled/s", "first delivery", "drained/s"), [row])
    sizes = [f"{found['memory'][when] / (1 << 20):,.1f} MiB" for when in ("before", "full", "drained")]
    write_table(("server memory before", "full", "drained", "more a message"), [
        (*sizes, f"{found['memory_a_message']:.1f} bytes"),
    ])  # fmt: skip
