"""Strangers at the door of links, and sites that lie: who may link, what sizes there are, what is told twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import orjson
import pyarrow as pa
import pytest

from choices import SEED
from penstock.config.load import load_mapping
from penstock.core.links.sharing import Site
from penstock.errors import PenstockError
from penstock.server.links.calling import Connection, hello_words, ours
from sites.house import LINK, Sites, publish, work
from sites.test_lying_sites import PIECE, head, rows
from unit.core_links.test_lies import lies, parcel

OFFER = {
    "identity": ["/", "work", "distributed", ""], "topic": ["", "work"], "filter": None, "initial_owner": None,
    "logged": True, "sends": True, "since": 1,
}  # fmt: skip
EVIL, OTHER = Site("evil", 5, "g"), Site("other", 33, "g")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """One that shares its queue with a site of which nobody knows who it is."""
    back = LINK.format(name="evil", port=1, topics='{ pattern = "work" }', settings="")
    with Sites(tmp_path_factory.mktemp("sites"), "b", more=back) as sites:
        yield sites


def calls(
    sites: Sites, me: Site = EVIL, *, password: str = "guest", offers: Sequence[Any] = (OFFER,),
    met: Sequence[Site] = (OTHER,), words: bytes | None = None,
) -> Connection:  # fmt: skip
    url = sites["b"].url.replace("guest:guest@", "")
    link = {"name": "b", "to": [url], "topic": [{"pattern": "work"}], "user": "guest", "password": password}
    section = load_mapping({"server": {"name": "x"}, "link": [link]}, environ={}).link[0]
    return Connection(section, section.targets[0], words or hello_words("b", me, list(offers), met, sync=False))


def why(connection: Connection) -> str:
    """What ends it, in the other site's words."""
    try:
        while True:
            if b"ended" in (said := connection.read()):
                return said.decode()
    except (PenstockError, pa.ArrowException, OSError) as error:
        return str(ours(error, None))  # type: ignore[arg-type]
    finally:
        connection.close()


def goes_on(sites: Sites) -> None:
    publish(sites["b"], b"goes on")
    assert work(sites["b"], 1) == [b"goes on"]


HELLOS: dict[str, tuple[dict[str, Any], str]] = {
    "a wrong password": ({"password": "wrong"}, "password|login|refused"),
    "no origin": (
        {"words": b'{"link":{"name":"b","site":"evil","group":"","sync":false,"offers":[],"sites":[]}}'}, "origin",
    ),
    "what is no link": ({"words": b'{"link":[]}'}, "link"),
    "a thousand sites and one": ({"met": [Site(f"s{n}", n + 100) for n in range(1001)]}, "1000 are the most"),
    "offers that are none": ({"offers": [{"identity": 1}]}, "cannot be read"),
    "this site's own name": ({"me": Site("b", 9, "g")}, "b"),
    "a site's name that has another log": ({"met": [Site("other", 34)]}, "other"),
}  # fmt: skip


@pytest.mark.parametrize("hello", HELLOS)
def test_who_may_not_link_is_told_and_nothing_else_happens(sites: Sites, hello: str) -> None:
    first = calls(sites)
    assert b"welcome" in first.read()
    first.close()
    given, expected = HELLOS[hello]
    try:
        told = why(calls(sites, **given))
    except (PenstockError, pa.ArrowException, OSError) as error:
        told = str(ours(error, None))  # type: ignore[arg-type]
    assert any(one in told for one in expected.split("|")), told
    goes_on(sites)


def test_two_sites_of_one_name_are_not_both_heard(sites: Sites) -> None:
    first = calls(sites)
    assert b"welcome" in first.read()
    second = calls(sites, Site("evil", 6, "g"))
    assert "evil" in why(second)
    first.close()
    goes_on(sites)


def test_what_is_told_again_is_stored_once(sites: Sites) -> None:
    before = sites["b"].waiting()
    for _ in range(2):
        connection = calls(sites)
        assert b"welcome" in connection.read()
        for _ in range(3):
            connection.write(head(70, PIECE), rows(61))
        connection.write(head(60, PIECE), rows(61))  # as if nothing had been told yet
        while b'"ack":70' not in connection.read():
            pass
        connection.close()
    assert sites["b"].waiting() == before + 1
    connection = calls(sites)
    connection.read()
    connection.write(head(71, told=[["/", "work", [5, 61, 62]]]))
    while b'"ack":71' not in connection.read():
        pass
    connection.close()
    assert sites["b"].waiting() == before
    goes_on(sites)


def test_a_settle_of_all_that_may_ever_be_is_refused_and_takes_no_memory(sites: Sites) -> None:
    """Of another site's messages, which have not come: what is remembered until they do is bounded."""
    connection = calls(sites)
    assert b"welcome" in connection.read()
    connection.write(head(80, told=[["/", "work", [33, 1, 2**52]]]))
    assert "more would be beyond 100000" in why(connection)
    goes_on(sites)


def test_a_head_beyond_its_bound_is_refused(sites: Sites) -> None:
    connection = calls(sites)
    assert b"welcome" in connection.read()
    try:
        connection.write(b'{"upto":9,"more":"' + b"x" * (2 << 20) + b'"}')
    except (PenstockError, pa.ArrowException, OSError):
        pass
    assert "at most 1048576 are read" in why(connection)
    goes_on(sites)


def test_mutated_parcels_end_the_link_or_are_parcels(sites: Sites) -> None:
    random = Random(SEED)
    good = head(90, PIECE, told=[["/", "work", [33, 4, 9]], ["/", "work", [5, 1, 2], "evil", 3, "grant"]])
    for number in range(25):
        bad = bytearray(good)
        for _ in range(random.randint(1, 4)):
            bad[random.randrange(len(bad))] = random.choice(b'0123456789[]{},":-e ')
        connection = calls(sites, offers=[])
        assert b"welcome" in connection.read()
        try:
            connection.write(bytes(bad), rows(91 + number))
            connection.write(b'{"say":"stop"}')  # ends it in any case
        except (PenstockError, pa.ArrowException, OSError):
            pass
        assert why(connection), bytes(bad)
    assert sites["b"].waiting() <= 25
    with sites["b"].client() as client:
        client.purge("work")
    goes_on(sites)


def test_each_field_may_be_a_lie_and_nobody_else_at_the_door_hears_of_it(sites: Sites, effort: int) -> None:
    """Every other field is tried in the core; here those that a run chooses, each by a site that calls anew."""
    site, random = sites["b"], Random(SEED)
    connection = calls(sites)
    origin = int(orjson.loads(connection.read())["welcome"]["origin"])
    honest = parcel(2000, origin, EVIL.origin, "work", OFFER, OTHER.name)
    connection.write(honest.head, honest.rows)
    while b'"ack":2009' not in connection.read():
        pass
    connection.close()
    honest = parcel(3000, origin, EVIL.origin, "work", OFFER, OTHER.name)
    hello = hello_words("b", EVIL, [OFFER], (OTHER,), sync=False)
    ask = orjson.dumps({"say": "ask", "ask": ["/", "work", [[origin, 1, 3], [5, 7, 8]], [OTHER.name]]})
    said = {which: [words for _, words in lies(one)] for which, one in (("parcel", honest.head), ("ask", ask))}
    said["hello"] = [words for _, words in lies(hello)]
    channel = site.connect().channel()
    with site.client() as client, client.consume("work", backlog=5) as consumer:
        for number in range(30 * effort):
            which = ("parcel", "ask", "hello")[number % 3]
            words = random.choice(said[which])
            try:
                connection = calls(sites, words=words if which == "hello" else None)
                if which != "hello":
                    connection.write(words, honest.rows if which == "parcel" else None)
                    connection.write(b'{"say":"stop"}')  # ends it in any case
                elif b"welcome" in (heard := connection.read()):
                    connection.write(b'{"say":"stop"}')
            except (PenstockError, pa.ArrowException, OSError) as error:
                heard = str(error).encode()
            else:
                heard = why(connection).encode()
            assert heard, words
            assert b"internal error" not in heard, (words, heard)
            if number % 10 == 9:
                channel.basic_publish("", "work", b"%d" % number)
                while (message := consumer.take(timeout=30)) is not None:
                    message.ack()
                    if message.body == b"%d" % number:
                        break
                assert message is not None, "who consumes at the same door goes on, on the same connection"
    with site.client() as client:
        client.purge("work")
    goes_on(sites)
