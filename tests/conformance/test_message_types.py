"""Bodies of every message type through the doors of a server: Flight, SQL, AMQP, HTTP, and what rights let through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pika
import pyarrow as pa
import pytest
from click.testing import CliRunner

import penstock
from choices import spread
from http_lab import NO_TLS
from message_samples import SAMPLES, Sample
from penstock.cli.main import command as built
from penstock.errors import AccessRefused, InvalidArgument, PenstockError, PreconditionFailed
from penstock.testing import Broker

pytestmark = pytest.mark.conformance

ORDERS: list[dict[str, Any]] = [
    {"id": f"a-{n}", "total": n, "region": "north" if n % 2 else "south", "note": "x"} for n in range(1, 7)
]
CONFIG: dict[str, Any] = {
    "user": [
        {"name": "guest", "password": "guest", "tags": ["administrator"]},
        {"name": "ann", "password": "ann", "tags": ["management"]},
    ],
    "entitlement": [
        {"tag": "administrator", "read": True, "write": True},
        *(
            {
                "user": "ann",
                kind: f"^{sample.label}-(work|records|amqp)",
                "read": sample.said("{region} = 'north'"),
                "write": sample.said("{total} < 3"),
            }
            for sample in SAMPLES.values()
            for kind in ("queue", "topic")
        ),
    ],
    "topic": [
        {
            "name": "payments",
            "json_schema": {"required": ["id"], "properties": {"amount": {"type": "number", "exclusiveMinimum": 0}}},
        },
        *(
            {"name": f"{sample.label}-records", "message_type": sample.name, "key": [sample.path("id")]}
            for sample in SAMPLES.values()
        ),
    ],
    "queue": [{"name": f"{sample.label}-work", "message_type": sample.name} for sample in SAMPLES.values()],
}
ALL = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(CONFIG) as one:
        for sample in SAMPLES.values():
            for order in ORDERS:
                for name in ("work", "records"):
                    one.publish(f"{sample.label}-{name}", sample.body(order), headers=sample.headers)
        yield one


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[penstock.Client]:
    with penstock.connect(broker.flight_url) as one:
        yield one


@pytest.fixture(scope="module")
def ann(broker: Broker) -> Iterator[penstock.Client]:
    with penstock.connect(broker.flight_url, user="ann", password="ann") as one:
        yield one


def totals(sample: Sample, bodies: Any) -> list[int]:
    """Which orders these are, by their totals."""
    read = sample.read
    known = [read(sample.body(order)) for order in ORDERS]
    return [known.index(read(body)) + 1 for body in bodies]


@ALL
def test_reads_with_filters(client: penstock.Client, sample: Sample) -> None:
    north, descending = sample.said("{region} = 'north'"), sample.said("{total} DESC")
    assert totals(sample, (one.body for one in client.peek(f"{sample.label}-work", filter=north))) == [1, 3, 5]
    found = client.sow(f"{sample.label}-records", filter=north, order_by=descending)
    assert totals(sample, (one.body for one in found)) == [5, 3, 1]
    replay = client.replay(f"{sample.label}-records", filter=sample.said("{total} > 4"))
    assert totals(sample, (one.body for one in replay)) == [5, 6]
    if sample.merges:
        for follow in (False, True):
            cut = client.replay(f"{sample.label}-records", select=f"-/, +{sample.path('id')}", follow=follow)
            assert next(iter(cut)).body == sample.body({"id": "a-1"})
    grouped = client.sow(
        f"{sample.label}-work",
        projection=sample.said("{region} AS /r, COUNT({id}) AS /n"),
        grouping=sample.path("region"),
    )
    assert sorted(one.body for one in grouped) == [b'{"r":"north","n":3}', b'{"r":"south","n":3}']


@ALL
def test_a_record_is_removed_by_the_body_of_a_message(client: penstock.Client, sample: Sample) -> None:
    topic, body = f"{sample.label}-removed", sample.body(ORDERS[0])
    client.declare_topic(topic, message_type=sample.name, key=[sample.path("id")])
    for order in ORDERS[:2]:
        client.publish(topic, sample.body(order), headers=sample.headers)
    if sample.headers:  # which a body alone has not
        with pytest.raises(PenstockError, match="so it has no key"):
            client.sow_delete(topic, data=body)
        return
    assert client.sow_delete(topic, data=body) == 1
    assert totals(sample, (one.body for one in client.sow(topic))) == [2]


@pytest.mark.parametrize("name", spread(SAMPLES, 5))
def test_sql(client: penstock.Client, name: str) -> None:
    sample = SAMPLES[name]
    field = ".".join(f'"{step}"' for step in sample.path("region").strip("/").split("/"))
    counts = (
        f"SELECT '{name}' AS of, {field} AS region, count(*) AS n FROM \"{sample.label}-{name}\" GROUP BY ALL"
        for name in ("records", "work")
    )
    found = client.query(f"{' UNION ALL '.join(counts)} ORDER BY ALL").to_arrow().to_pylist()
    assert found == [
        {"of": name, "region": region, "n": 3} for name in ("records", "work") for region in ("north", "south")
    ]


@ALL
def test_what_a_user_may_read_and_write(ann: penstock.Client, sample: Sample) -> None:
    assert totals(sample, (one.body for one in ann.peek(f"{sample.label}-work"))) == [1, 3, 5]
    found = ann.sow(f"{sample.label}-records", filter=sample.said("{total} > 2"))
    assert sorted(totals(sample, (one.body for one in found))) == [3, 5]
    assert totals(sample, (one.body for one in ann.replay(f"{sample.label}-records"))) == [1, 3, 5]
    with pytest.raises(AccessRefused):
        ann.publish(f"{sample.label}-records", sample.body(ORDERS[4]), headers=sample.headers)
    ann.publish(f"{sample.label}-records", sample.body(ORDERS[0]), headers=sample.headers)


@ALL
def test_amqp_and_http(broker: Broker, sample: Sample) -> None:
    name = f"{sample.label}-amqp"
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        arguments = {"x-message-type": sample.name, "x-priority-expression": sample.path("total")}
        channel.queue_declare(name, durable=True, arguments=arguments)
        for order in ORDERS:
            channel.basic_publish("", name, sample.body(order), pika.BasicProperties(headers=dict(sample.headers)))
        got: list[bytes] = []
        channel.basic_consume(
            name, lambda *frames: got.append(frames[3]), arguments={"x-filter": sample.said("{region} = 'south'")}
        )
        while len(got) < 3:
            connection.process_data_events(time_limit=1)
        assert totals(sample, got) == [6, 4, 2]
        facts = httpx.get(
            f"{broker.http_url}/api/queues/%2F/{name}", verify=NO_TLS, timeout=20, auth=("guest", "guest")
        ).json()
        assert facts["arguments"]["x-message-type"] == sample.name


def test_another_type_is_told(broker: Broker, client: penstock.Client) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "nvfix-work", b"a=1\x01", pika.BasicProperties("text/plain"))
        with pytest.raises((pika.exceptions.ChannelClosedByBroker, pika.exceptions.NackError)):
            channel.basic_publish("", "nvfix-work", b"a=1\x01", pika.BasicProperties("application/json"))
    with pytest.raises(InvalidArgument, match="reads bson, and the bodies here are nvfix"):
        list(client.peek("nvfix-work", filter="[bson] /a = 1"))
    with pytest.raises(InvalidArgument, match="is among those that are chosen, and its bodies are"):
        list(client.replay(pattern="^.*records$", filter="/a = 1"))


def test_a_body_that_does_not_fit_its_schema_is_refused_at_every_door(broker: Broker, client: penstock.Client) -> None:
    place = r'/amount: the value is not of type "number"'
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "payments", b'{"id": 1, "amount": 5}')
        with pytest.raises((pika.exceptions.ChannelClosedByBroker, pika.exceptions.NackError)):
            channel.basic_publish("", "payments", b'{"id": 2, "amount": "5"}')
    with pytest.raises(InvalidArgument, match=place):
        client.publish("payments", {"id": 3, "amount": "5"})
    with pytest.raises(PreconditionFailed, match=place), client.transaction() as transaction:
        transaction.publish("payments", {"id": 4, "amount": "5"})
    sent = {"routing_key": "payments", "payload": '{"id": 5, "amount": "5"}', "payload_encoding": "string"}
    url = f"{broker.http_url}/api/exchanges/%2F/amq.default/publish"
    answer = httpx.post(url, verify=NO_TLS, timeout=20, auth=("guest", "guest"), json={**sent, "properties": {}})
    assert (answer.status_code, "does not fit the JSON Schema" in answer.text) == (400, True)
    told = client.publish_table("payments", pa.table({"body": [b'{"id": 6}', b'{"amount": 1}']}))
    [refusal] = told.refused
    assert (refusal.row, refusal.message.endswith('/: "id" is a required property')) == (1, True)
    assert [message.json()["id"] for message in client.replay("payments")] == [1, 6]
    facts = client.topic("payments")
    assert facts["json_schema_check"] == "reject"
    assert facts["json_schema_failed"] >= 5
    told = httpx.get(f"{broker.http_url}/metrics/per-object", verify=NO_TLS, timeout=20, auth=("guest", "guest")).text
    where = '{exchange="",topic="payments",vhost="/"}'
    assert f"penstock_topic_schema_failed_total{where} {float(facts['json_schema_failed'])}" in told


PACKED = ("msgpack", "bson", "avro", "protobuf")
DECODED = [one for one in SAMPLES.values() if one.name.partition(":")[0] in PACKED]


@pytest.mark.parametrize("sample", DECODED, ids=[sample.label for sample in DECODED])
def test_a_person_sees_fields_unless_he_asks_for_the_bytes(broker: Broker, sample: Sample) -> None:
    for command in (["queue", "peek", f"{sample.label}-work"], ["sow", f"{sample.label}-records"]):
        told = CliRunner().invoke(built(None), [*command, "--url", broker.flight_url])
        assert told.exit_code == 0, told.output
        shown = [orjson.loads(line)["id"] for line in told.output.splitlines()]
        assert sorted(shown) == [order["id"] for order in ORDERS]  # other tests have changed a record since
        raw = CliRunner().invoke(built(None), [*command, "--raw", "--url", broker.flight_url])
        assert raw.exit_code == 0, raw.output
        assert '"id":"a-1"' not in raw.output
