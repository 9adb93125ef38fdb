"""A sink's query belongs to who began it: nobody else finishes, abandons, fences or forgets it by knowing its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import SecretStr

import penstock
from flight_house import FlightHouse
from penstock.config.settings import User
from penstock.core.state.pending import SinkMark, dump_marks, load_marks
from penstock.core.streams import sinks
from penstock.core.streams.sinks import Remembered
from penstock.errors import AccessRefused, NotFound
from penstock.server.flight.calls import Caller
from penstock.server.people.access import Who

pytestmark = pytest.mark.conformance

Client = penstock.Client
As = Callable[[str], Client]

OTHER = User(name="other", password=SecretStr("other"))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path, people=[OTHER]) as house:
        house.run(lambda: house.engine.core.declare_topic(house.engine.now(), "/", "", "out"))
        yield house


@pytest.fixture
def as_(house: FlightHouse) -> Iterator[As]:
    with ExitStack() as stack:
        yield lambda user: stack.enter_context(penstock.connect(url_of(house, user)))


def url_of(house: FlightHouse, user: str) -> str:
    return house.url.replace("guest:guest", f"{user}:{user}")


def staged(client: Client, batch: int) -> list[str]:
    found = client.stage("etl", batch, 0, 0, [pa.record_batch({"body": [b"row"]})], topic="out")
    assert found is not None
    return [found[0]]


def commit(client: Client, batch: int, stages: list[str]) -> bool:
    answer = client.action("sink_commit", with_vhost=False, query="etl", batch=batch, stages=stages)
    return bool(answer["already"])


def state(client: Client) -> object:
    return client.action("sink", with_vhost=False, query="etl")["batch"]


def listed(admin: Client) -> list[tuple[object, object]]:
    return [(one["batch"], one["user"]) for one in admin.action("sinks", with_vhost=False)["sinks"]]


def test_another_user_neither_finishes_nor_fences_nor_asks_after_a_query(as_: As) -> None:
    owner, other = as_("reader"), as_("other")
    assert not commit(owner, 0, staged(owner, 0))
    mine = staged(owner, 1)
    with pytest.raises(AccessRefused, match="query 'etl' belongs to another user: 'other' may commit for it with"):
        commit(other, 1, mine)  # finish
    with pytest.raises(AccessRefused):
        commit(other, 1000, [])  # fence
    with pytest.raises(AccessRefused):
        commit(other, 0, [])  # see what became of it
    assert state(other) is None
    assert other.action("stage_drop", with_vhost=False, stages=mine)["dropped"] == 0  # abandon
    assert not commit(owner, 1, mine)
    assert commit(owner, 1, mine)
    assert state(owner) == 1


def test_the_stages_of_another_user_are_not_there(as_: As) -> None:
    mine = staged(as_("reader"), 0)
    with pytest.raises(NotFound, match="no stage"):
        commit(as_("other"), 0, mine)


def test_another_users_stream_does_not_void_what_was_staged(house: FlightHouse, as_: As) -> None:
    """A stream's batch names the batch of a query that it goes to; where it is narrowed that is void."""
    owner = as_("reader")
    mine = staged(owner, 0)
    house.door.actions.void(Caller(Who("other"), "", lambda: False), "etl", 0)
    assert not commit(owner, 0, mine)


def test_an_administrator_helps_and_the_query_stays_whose_it_is(as_: As) -> None:
    owner, admin = as_("reader"), as_("guest")
    assert not commit(owner, 0, staged(owner, 0))
    assert not commit(admin, 1, staged(owner, 1))
    assert listed(admin) == [(1, "reader")]
    assert not commit(owner, 2, staged(owner, 2))


def test_what_belonged_to_who_is_gone_belongs_to_who_goes_on(
    house: FlightHouse, as_: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, other = as_("reader"), as_("other")
    assert not commit(owner, 0, staged(owner, 0))
    monkeypatch.setattr(house.door.gate, "_people", lambda user: Who(user, there=user != "reader"))
    assert not commit(other, 1, staged(other, 1))
    assert listed(as_("guest")) == [(1, "other")]


def test_the_owner_outlives_a_restart(tmp_path: Path) -> None:
    with FlightHouse(tmp_path, people=[OTHER]) as house, penstock.connect(url_of(house, "reader")) as owner:
        commit(owner, 0, [])
    with (
        FlightHouse(tmp_path, people=[OTHER]) as house,
        penstock.connect(url_of(house, "other")) as other,
        pytest.raises(AccessRefused),
    ):
        commit(other, 1, [])
    marks = {"etl": SinkMark(7, True, "for people", "reader", "'out'")}
    assert load_marks(dump_marks(marks)) == marks
    assert load_marks({"etl": [7, 1, "for people"]}) == {"etl": SinkMark(7, True, "for people")}


def test_nobody_makes_others_forget_their_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "KEPT", 200)
    known = Remembered()
    known.add(1, "etl", 0, SinkMark(1, user="reader"), keep=())
    for number in range(1000):
        known.add(1, f"x{number}", 0, SinkMark(number + 2, user="other"), keep=())
    assert known.owner("etl") == "reader"
    assert len(known.batches) < 300
