"""A fault in the thread that writes a stream ends the stream: its client is told, and what he had goes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import orjson
import pytest

from penstock.errors import PenstockError
from penstock.server.base.faults import TOLD, reports
from penstock.server.flight.downstream import Delivery, Downstream
from planting import Fault

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.memory.slab import Piece


def fails(*_: object) -> Any:
    raise Fault


class Written:
    """What the client gets."""

    def __init__(self) -> None:
        self.words = list[dict[str, str]]()

    def write_batch(self, batch: object) -> None: ...

    def write_metadata(self, words: bytes) -> None:
        self.words.append(orjson.loads(words))


PLACES = {
    "writing rows": ("writer", "write_batch"),
    "answering": ("writer", "write_metadata"),
    "putting rows together": ("down", "_batch"),
    "choosing what is next": ("down", "_next"),
    "going on": ("down", "on_room"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_fault_in_the_thread_that_writes_ends_the_stream(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, before = list[PenstockError](), reports.counts["flight"]
    down = Downstream(
        cast("Log", None), "q", most=lambda: 10, on_room=lambda: None, on_gone=lambda: None,
        on_unreadable=ended.append,
    )  # fmt: skip
    monkeypatch.setattr(down, "_batch", lambda some: SimpleNamespace(num_rows=len(some)))
    writer, (whose, name) = Written(), PLACES[place]
    said = writer.write_metadata

    def fails_once(words: bytes) -> None:
        monkeypatch.setattr(writer, "write_metadata", said)
        raise Fault

    fault = fails_once if name == "write_metadata" else fails
    monkeypatch.setattr(writer if whose == "writer" else down, name, fault)
    piece = SimpleNamespace(bodies=[bytes(100)], chunk=range(1, 2))
    assert down.deliver(Delivery(cast("Piece", piece), 1, False, 0, time=1))
    if name == "write_metadata":
        down.answer(b"{}")
    down.ring()
    down.run(writer)  # it comes to its end
    assert [str(one) for one in ended] == [TOLD]
    assert writer.words == [{"ended": TOLD}]
    assert down.finished
    assert reports.counts["flight"] == before + 1
