"""What was staged, or sent for a transaction, is published by the rights of who commits it, as they are then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from threading import Event

import pyarrow as pa
import pytest
from pyarrow import flight

import penstock
from penstock.errors import AccessRefused
from penstock.server.flight.gatekeeper import Gatekeeper
from penstock.testing import Broker
from penstock.wire.flight.tickets import command
from scenario import broker_of

pytestmark = pytest.mark.conformance

WAYS = ("of one topic", "each row of its own", "in order")


class House:
    """Ann stages; bob has nothing in common with her."""

    def __init__(self, broker: Broker, stack: ExitStack) -> None:
        self.broker = broker
        self.root = stack.enter_context(penstock.connect(broker.flight_url))
        for name in ("ann", "bob"):
            self.root.add_user(name, password=name)
        self.may("ann", ".*")
        self.ann, self.bob = (stack.enter_context(self.client(name, name)) for name in ("ann", "bob"))

    def may(self, user: str, write: str) -> None:
        self.root.set_permissions(user, "", write, "")

    def client(self, user: str, password: str) -> penstock.Client:
        return penstock.connect(f"penstock://{user}:{password}@{self.broker.flight_url.rpartition('@')[2]}")

    def ready(self) -> int:
        return int(self.root.queue("orders")["ready"])


@pytest.fixture
def house() -> Iterator[House]:
    with broker_of({"name": "orders"}) as broker, ExitStack() as stack:
        yield House(broker, stack)


def staged(client: penstock.Client, way: str) -> str:
    columns: dict[str, list[object]] = {"body": [json.dumps({"owner": "ann"}).encode()]}
    if way == "in order":
        columns["order"] = [1]
    if way == "each row of its own":
        columns["topic"] = ["orders"]
    topic = None if "topic" in columns else "orders"
    found = client.stage("etl", 0, 0, 0, [pa.record_batch(columns)], topic=topic, ordered="order" in columns)
    assert found is not None
    return found[0]


def commit(client: penstock.Client, stage: str) -> int:
    return int(client.action("sink_commit", with_vhost=False, query="etl", batch=0, stages=[stage])["stored"])


@pytest.mark.parametrize("way", WAYS)
def test_a_right_that_was_taken_away_publishes_nothing_that_was_staged(house: House, way: str) -> None:
    stage = staged(house.ann, way)
    house.may("ann", "^other$")
    with pytest.raises(AccessRefused, match="refused for user 'ann': no right to write"):
        commit(house.ann, stage)
    assert house.ready() == 0
    house.may("ann", "^amq.default$")
    assert commit(house.ann, stage) == 1


@pytest.mark.parametrize("way", WAYS)
def test_who_goes_on_with_what_somebody_gone_has_staged_publishes_what_he_may(house: House, way: str) -> None:
    stage = staged(house.ann, way)
    house.root.delete_user("ann")
    for write in (None, "^other$"):
        if write is not None:
            house.may("bob", write)
        with pytest.raises(AccessRefused, match="refused for user 'bob': no right to write"):
            commit(house.bob, stage)
    assert house.ready() == 0
    house.may("bob", ".*")
    assert commit(house.bob, stage) == 1


def test_a_token_commits_what_it_may_publish_itself(house: House) -> None:
    tokens = [house.ann.issue_token("1h", write=write) for write in ("orders", "other")]
    with house.client("ann", tokens[0]["token"]) as writes, house.client("ann", tokens[1]["token"]) as other:
        stage = staged(writes, "of one topic")
        with pytest.raises(AccessRefused, match="is not made for write"):
            commit(other, stage)
        assert commit(writes, stage) == 1
        assert house.ready() == 1


def test_a_token_that_writes_nothing_neither_commits_nor_drops_what_its_user_writes(house: House) -> None:
    """It fenced a query of its user's, whose batches were then skipped as late ones, and removed what was staged."""
    stage = staged(house.ann, "of one topic")
    with house.client("ann", house.ann.issue_token("1h", write="")["token"]) as reads:
        for act in (
            lambda: reads.action("sink_commit", with_vhost=False, query="etl", batch=1000, stages=[]),
            lambda: reads.action("stage_drop", with_vhost=False, stages=[stage]),
        ):
            with pytest.raises(AccessRefused, match="of user 'ann' is not made for write"):
                act()
    assert commit(house.ann, stage) == 1


def test_of_a_part_that_may_be_written_each_row_is_looked_at() -> None:
    config = {
        "user": [{"name": "guest", "password": "guest", "tags": ["administrator"]}],
        "queue": [{"name": "orders"}],
        "entitlement": [
            {"tag": "administrator", "read": True, "write": True},
            {"topic": ".*", "read": False, "write": "/owner = USER()"},
        ],
    }
    with Broker(config) as broker, ExitStack() as stack:
        house = House(broker, stack)
        house.may("bob", "")
        stage = staged(house.ann, "of one topic")
        house.root.delete_user("ann")
        with pytest.raises(AccessRefused, match="row 0 to topic 'orders' in vhost '/' is not one that user 'bob' may"):
            commit(house.bob, stage)
        assert house.ready() == 0


@pytest.mark.parametrize("write", ["^other$", ".*"])
def test_a_transaction_is_judged_by_the_rights_of_its_commit(
    house: House, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    """Our own client sends all of it with the commit; who sent messages before published them though he might not."""
    judged, publish = Event(), Gatekeeper.publish
    monkeypatch.setattr(Gatekeeper, "publish", lambda gate, *args: (publish(gate, *args), judged.set()))
    rows = pa.record_batch({"topic": ["orders"], "body": [b"1"]})
    writer, reader = house.ann.open_transaction(command("transact"), rows.schema)
    writer.write_with_metadata(rows, b'{"exchange": ""}')
    assert judged.wait(30)
    house.may("ann", write)
    writer.write_metadata(b'{"commit": {"rows": 1, "settles": []}}')
    writer.done_writing()
    reader.read()
    with nullcontext() if write == ".*" else pytest.raises(flight.FlightError, match="no right to write"):
        writer.close()
    assert house.ready() == (write == ".*")


def test_what_was_judged_by_the_same_rights_is_not_read_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.server.flight import sink_stages

    read = list[str]()
    rows_of = sink_stages.rows_of
    monkeypatch.setattr(sink_stages, "rows_of", lambda disk, stem: read.append(stem) or rows_of(disk, stem))
    stage = staged(house.ann, "of one topic")
    assert commit(house.ann, stage) == 1
    assert read == [stage]  # to publish it
