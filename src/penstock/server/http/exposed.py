"""Metrics as text, Prometheus format 0.0.4, in pieces: of many things with long names there are hundreds of megabytes.

A piece is made when it is taken, so that nobody has more than one of them.
Source: https://prometheus.io/docs/instrumenting/exposition_formats
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Any, cast

from prometheus_client import utils

from penstock.server.http.metrics import Family, Histogram, Values

_number: Callable[[float], str] = cast("Any", utils).floatToGoString  # which has no types

PIECE = 256 << 10
"""Letters after which a piece ends."""


def pieces(metrics: Iterable[Family | Histogram]) -> Iterator[bytes]:
    """All of them, UTF-8; none is empty."""
    some, size = list[str](), 0
    for one in metrics:
        for line in _lines(one):
            some.append(line)
            size += len(line)
            if size >= PIECE:
                yield "".join(some).encode()
                some, size = [], 0
    if some:
        yield "".join(some).encode()


def _lines(one: Family | Histogram) -> Iterator[str]:
    """What it is, and its values."""
    if isinstance(one, Histogram):
        yield _head(one.name, one.text, "histogram")
        named = [[*one.named, "+Inf" if end == inf else f"{end:{one.form}}"] for end, _ in one.buckets]
        counts = [float(count) for _, count in one.buckets]
        yield from _values(f"{one.name}_bucket", (*one.labels, "le"), zip(named, counts, strict=True))
        yield from _values(f"{one.name}_count", one.labels, [(one.named, counts[-1])])
        yield from _values(f"{one.name}_sum", one.labels, [(one.named, one.total)])
    else:
        name = f"{one.name}_total" if one.counter else one.name
        yield _head(name, one.text, "counter" if one.counter else "summary" if one.summary else "gauge")
        yield from _values(name, one.labels, one.values)


def _head(name: str, text: str, kind: str) -> str:
    return f"# HELP {name} {_escaped(text)}\n# TYPE {name} {kind}\n"


def _values(name: str, labels: Sequence[str], values: Values) -> Iterator[str]:
    """A line each, with its labels in the order of their names."""
    order = sorted(range(len(labels)), key=labels.__getitem__)
    pairs = ",".join(f'{labels[at]}="%s"' for at in order)
    form = f"{name}{{{pairs}}} %s\n" if order else f"{name} %s\n"
    for named, value in values:
        quoted = (_escaped(named[at]).replace('"', r"\"") for at in order)
        yield form % (*quoted, _number(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
