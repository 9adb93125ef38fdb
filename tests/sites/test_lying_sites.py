"""A site that says what it may not say: it is cut off and told, nothing of it is stored, and the server goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import orjson
import pyarrow as pa
import pytest

from penstock.config.load import load_mapping
from penstock.core.links.sharing import Site
from penstock.errors import PenstockError, PreconditionFailed
from penstock.records.schema import CARRIED
from penstock.server.links.calling import Connection, hello_words, ours
from sites.house import Sites, publish, work

PROPERTIES = b"\x10\x00\x02"


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with Sites(tmp_path_factory.mktemp("sites"), "b") as sites:
        yield sites


def calls(sites: Sites, name: str, origin: int = 5, to: str = "b") -> Connection:
    """A link that calls itself so."""
    url = sites["b"].url.replace("guest:guest@", "")
    link = {"name": "b", "to": [url], "topic": [{"pattern": "work"}]}
    section = load_mapping({"server": {"name": name}, "link": [link]}, environ={}).link[0]
    words = hello_words(to, Site(name, origin, "g"), [], [], sync=False)
    return Connection(section, section.targets[0], words)


def rows(*lsns: int, body: bytes = b"hi", properties: bytes = PROPERTIES) -> pa.RecordBatch:
    count = len(lsns)
    nothing = [pa.nulls(count, CARRIED.field(name).type) for name in ("expires_at", "not_before", "priority")]
    columns = [
        pa.array(lsns, pa.int64()),
        pa.array(["work"] * count),
        pa.array([1] * count, CARRIED.field("time").type),
        *nothing,
    ]
    columns += [pa.array([properties] * count, pa.binary()), pa.array([body] * count, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=CARRIED)


def head(upto: int, *pieces: Any, **more: object) -> bytes:
    return orjson.dumps({"upto": upto, **({"pieces": list(pieces)} if pieces else {}), **more})


PIECE = [[5], "/", "", [], 1]
"""Of the log 5 one message, to the default exchange."""

LIES: dict[str, tuple[bytes, pa.RecordBatch | None]] = {
    "no JSON": (b"{", None),
    "no head": (b"[]", None),
    "fewer rows than it says": (head(9, [[5], "/", "", [], 3]), rows(7)),
    "rows without a piece": (head(9), rows(7)),
    "LSNs that fall": (head(9, [[5], "/", "", [], 2]), rows(8, 7)),
    "a log that nobody has met": (head(9, [[77, 5], "/", "", [], 1]), rows(7)),
    "properties that are none": (head(9, PIECE), rows(7, properties=b"\x80\x00\x05hi")),
    "an LSN that is none": (head(9, PIECE), rows(0)),
    "an ask that is none": (b'{"say":"ask","ask":{"a":1}}', None),
    "something else": (b'{"say":"stop"}', None),
}


@pytest.mark.parametrize("lie", LIES)
def test_who_lies_is_cut_off_and_told(sites: Sites, lie: str) -> None:
    connection = calls(sites, "liar")
    assert b"welcome" in connection.read()
    before = sites["b"].waiting()
    words, batch = LIES[lie]
    try:
        connection.write(words, batch)
        said = b""
        while b"ended" not in said:
            said = connection.read()
    except (PenstockError, pa.ArrowException, OSError):
        pass  # told by the end of the call
    finally:
        connection.close()
    assert sites["b"].waiting() == before
    publish(sites["b"], b"goes on")
    assert work(sites["b"], 1) == [b"goes on"]


@pytest.mark.parametrize(("name", "to", "why"), [("liar", "c", "called 'b'"), ("b", "b", "b")])
def test_who_calls_another_site_or_itself_so_is_refused(sites: Sites, name: str, to: str, why: str) -> None:
    with pytest.raises((PenstockError, pa.ArrowException)) as told:  # as it calls, or with the first word
        _first_word(lambda: calls(sites, "x", to=to) if name == "liar" else _named_as(sites))
    assert why in str(ours(told.value, None))  # type: ignore[arg-type]
    assert not isinstance(told.value, PreconditionFailed) or told.value.code


def _first_word(call: Callable[[], Connection]) -> bytes:
    with closing(call()) as connection:
        return connection.read()


def _named_as(sites: Sites) -> Connection:
    url = sites["b"].url.replace("guest:guest@", "")
    link = {"name": "b", "to": [url], "topic": [{"pattern": "work"}]}
    section = load_mapping({"server": {"name": "x"}, "link": [link]}, environ={}).link[0]
    return Connection(section, section.targets[0], hello_words("b", Site("b", 9, "g"), [], [], sync=False))
