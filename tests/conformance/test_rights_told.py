"""What rights keep from somebody beyond the answer to one request: names in hints, stories and lists, old logins.

Over Flight: what asks for the administrator's tag, and what does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import penstock
from flight_house import FlightHouse
from http_lab import Http
from penstock.errors import AccessRefused, NotFound, PenstockError
from penstock.testing import Broker
from rights_house import HELD, Answer, House

pytestmark = pytest.mark.conformance


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("rights")) as house:
        yield house


# -- logins

CALLS: Mapping[str, Callable[[flight.FlightClient, flight.FlightCallOptions], object]] = {
    "ListActions": lambda client, options: list(client.list_actions(options)),
    "ListFlights": lambda client, options: list(client.list_flights(b"/", options)),
    "GetFlightInfo": lambda client, options: client.get_flight_info(
        flight.FlightDescriptor.for_path("queue", HELD), options
    ),
    "GetSchema": lambda client, options: client.get_schema(flight.FlightDescriptor.for_path("queue", HELD), options),
    "DoGet": lambda client, options: client.do_get(flight.Ticket(b'{"queue": {"name": "held"}}'), options).read_all(),
    "DoAction": lambda client, options: list(client.do_action(flight.Action("health", b"{}"), options)),
    "DoPut": lambda client, options: _finished(
        client.do_put(flight.FlightDescriptor.for_command(b'{"publish": {"topic": "held"}}'), pa.schema([]), options)
    ),
    "DoExchange": lambda client, options: _finished(
        client.do_exchange(flight.FlightDescriptor.for_command(b'{"consume": {"queue": "held"}}'), options)
    ),
}


def _finished(pair: tuple[flight.FlightStreamWriter, object]) -> None:
    writer, _ = pair
    writer.close()


@pytest.mark.parametrize("call", CALLS)
def test_who_has_no_login_is_told_nothing_over_flight(house: House, call: str) -> None:
    for user, password in (("administrator-all", "wrong"), ("nobody", "wrong")):
        client, options = house.flight(user, password)
        known = OSError if call == "GetSchema" else flight.FlightUnauthenticatedError  # as pyarrow's client has it
        with pytest.raises(known, match=r"may not log in .*Unauthenticated"):
            CALLS[call](client, options)
    if call in {"ListActions", "ListFlights", "GetFlightInfo", "GetSchema", "DoGet", "DoAction"}:
        client, options = house.flight("administrator-all")
        CALLS[call](client, options)


PROBES = {"/healthz", "/readyz", "/leader", "/metrics", "/", "/cli/rabbitmqadmin"}
"""Beside these, and the files of the dashboard, nothing answers without a login.  The last is a program."""


def test_who_has_no_login_is_told_counts_over_http(house: House) -> None:
    paths = {*house.app.pages, *house.application.probes}
    open_paths = {path for path in paths if house.http("", "GET", path).kind == "ok"}
    assert {path for path in open_paths if not path.startswith("/dashboard/")} == PROBES
    assert "/metrics/per-object" in paths - open_paths
    assert "held-" not in house.http("", "GET", "/metrics").text
    for user, may in (("management-all", False), ("monitoring-none", True)):
        answer = house.http(user, "GET", "/metrics/per-object")
        assert (answer.kind == "ok") is may
        assert ('queue="held"' in answer.text) is may


def test_who_is_deleted_may_nothing_although_the_login_is_remembered(house: House) -> None:
    """A user without an account is none of the settings, whom nothing limits."""
    assert house.act("held-user", "list", {}).kind == "ok"
    assert house.http("administrator-all", "DELETE", "/api/users/held-user").kind == "ok"
    for name, body in (("list", {}), ("stats", {"queue": HELD}), ("purge", {"queue": HELD}), ("topics", {})):
        assert house.act("held-user", name, body).kind == "refused", name
    assert house.get("held-user", {"queue": {"name": HELD}}).kind == "refused"
    house.mend()


def test_pipelines_are_told_of_by_whom_they_act_as(house: House) -> None:
    report = {"driver": "d", "pipelines": {"held-pipeline": {"state": "failed", "error": "forged"}}}
    assert house.act("keeper", "pipeline_report", report).kind == "refused"  # of the settings, too, and untagged
    assert "for whom pipelines act as" in house.act("keeper", "pipeline_leave", {"pipelines": []}).text
    for name, body in (("pipeline_report", report), ("streams", {}), ("pipeline_status", {}), ("sinks", {})):
        assert house.act("driver", name, body).kind == "ok", name
    assert house.act("driver", "users", {}).kind == "refused"


# -- messages of another vhost


def test_a_message_of_another_vhost_is_none(house: House) -> None:
    publish = {"routing_key": HELD, "payload": "x", "payload_encoding": "string", "properties": {}}
    assert house.http("management-all", "POST", "/api/exchanges/%2F/amq.default/publish", publish).kind == "ok"
    lsn = str(house.on_loop(lambda: house.server.engine.core.last_lsn))
    assert house.act("untagged-all", "story", {"bookmark": lsn}).kind == "ok"

    def told(user: str, name: str, bookmark: str) -> Answer:
        answer = house.act(user, name, {"bookmark": bookmark, "vhost": "shop"})
        return Answer(answer.kind, answer.text.replace(f"|{bookmark}|", "|LSN|"))

    for name in ("story", "explain", "cancel"):
        for user in ("untagged-other", "administrator-all"):
            there, absent = told(user, name, lsn), told(user, name, "1")  # what stands at 1 is no message
            assert there.kind == "NotFound", (name, user)
            assert there == absent


# -- hints


def test_a_statement_is_told_no_name_that_its_user_may_not_read(house: House) -> None:
    def told(user: str, table: str) -> Answer:
        answer = house.get(user, {"sql": {"statement": f'SELECT * FROM "{table}"'}})
        return Answer(answer.kind, answer.text.replace(table, "T"))

    assert "did you mean 'held'" in told("untagged-all", "heldd").text
    for near, there in (("heldd", "held"), ("held-toppic", "held-topic")):
        assert told("untagged-nothing", near) == told("untagged-nothing", there)
        assert told("untagged-nothing", near).kind == "refused"
        qualified = house.get("untagged-nothing", {"sql": {"statement": f'SELECT * FROM queue."{near}"'}})
        assert qualified.kind == "refused"


ENTITLED = {
    "vhost": [{"name": "shop"}],
    "queue": [{"name": "q"}, {"name": "secret", "underlying_topic": "q"}, {"name": "q", "vhost": "shop"}],
    "user": [{"name": "guest", "password": "guest", "tags": ["administrator"]}],
    "entitlement": [{"queue": "^q$", "read": True}, {"vhost": "shop", "read": True}],
}


def test_an_entitlement_is_no_way_into_a_vhost() -> None:
    """Users of run time need a permission for it, over every door."""
    with Broker(ENTITLED) as broker:
        http = Http(broker)
        http.do("PUT", "users/ann", {"password": "ann", "tags": "management"}, 201)
        http.do("PUT", "permissions/shop/ann", {"configure": "", "write": "", "read": ""}, 201)
        address = f"penstock://ann:ann@{broker.flight_url.rpartition('@')[2]}"
        with penstock.connect(f"{address}/shop") as shop:
            assert [one["queue"] for one in shop.queues()] == ["q"]
            assert list(shop.peek("q")) == []
        with penstock.connect(address) as ann:
            for act in (lambda: list(ann.peek("q")), lambda: ann.queue("q"), ann.queues, lambda: ann.query("SELECT 1")):
                with pytest.raises(AccessRefused):
                    act()
        assert [(one["vhost"], one["name"]) for one in Http(broker, "ann").get("queues")] == [("shop", "q")]


def test_why_a_message_is_not_here_names_no_queue_that_is_hidden() -> None:
    with Broker(ENTITLED) as broker:
        http = Http(broker)
        http.do("PUT", "users/ann", {"password": "ann", "tags": "management"}, 201)
        http.do("PUT", "permissions/%2F/ann", {"configure": "", "write": "", "read": ""}, 201)
        http.do("PUT", "queues/%2F/other", {}, 201)
        mark = broker.publish("secret", "x")  # to the topic `q`, so both have it
        broker.publish("other", "x")
        other = str(broker.command(lambda instance: instance.core.last_lsn))
        ann = Http(broker, "ann")
        assert mark
        told = str(ann.get(f"queues/%2F/q/explain?bookmark={other}"))
        assert "it went to others" in told
        assert "secret" not in told
        assert "'other'" in str(http.get(f"queues/%2F/q/explain?bookmark={other}"))


# -- queues as a way round


def test_a_queue_is_no_way_round_the_right_to_write(house: House) -> None:
    """What it is given by its name goes to the exchange that it shows; what expires in it goes where it says."""
    accounts, core = house.server.accounts, house.server.engine.core
    kept = accounts.permissions["untagged-all", "/"]
    narrow = type(kept)("untagged-all", "/", ".*", "^(amq.default|mine)$", ".*")

    def permit(one: object) -> None:
        accounts.permissions["untagged-all", "/"] = one  # type: ignore[assignment]
        accounts.tell()

    house.on_loop(lambda: permit(narrow))
    try:
        shows = {"underlying_topic": "t", "exchange": HELD}
        assert house.act("untagged-all", "declare", {"queue": "held-view", "settings": shows}).kind == "ok"
        assert "'held'" in house.put("untagged-all", {"publish": {"topic": "held-view"}}, topic="held-view").text
        house.on_loop(lambda: permit(type(kept)("untagged-all", "/", ".*", "^mine$", ".*")))
        expires = {"expiry_address": HELD}
        assert house.act("untagged-all", "declare", {"queue": "held-new", "settings": expires}).kind == "refused"
    finally:
        house.on_loop(lambda: permit(kept))
        house.on_loop(lambda: core.delete_queue(house.server.engine.now(), core.queue("/", "held-view")))


def test_refusals_are_errors_of_their_own(house: House) -> None:
    """A client is not told by the class of an error whether a stream of others is there."""
    port = house.server.addresses["flight"]
    with penstock.connect(f"penstock://untagged-nothing:secret@{port}") as client:
        for stream in ("held-stream", "gone"):
            with pytest.raises(NotFound, match=f"no stream '{stream}'"):
                client.action("stream_lag", with_vhost=False, stream=stream)
        with pytest.raises(PenstockError, match="access to stream 'held-stream' refused"):
            client.action("stream_open", stream="held-stream")


# -- lists

NAMELESS = {
    "user": [{"name": "guest", "password": "guest", "tags": ["administrator"]}],
    "queue": [{"name": "q"}, {"name": "secret-queue"}, {"name": "secret-view", "underlying_topic": "secret-topic"}],
    "topic": [{"name": "secret-topic", "key": ["/id"]}],
    "view": [{"name": "secret-sums", "source": "secret-queue", "select": "COUNT(/id) AS /n"}],
    "entitlement": [
        {"tag": "administrator", "read": True, "write": True},
        {"queue": "^q$", "read": True, "write": True},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def nameless() -> Iterator[tuple[Broker, str]]:
    """Much that is there, of which `ann` may see the queue `q` alone; and her address over Flight."""
    with Broker(NAMELESS) as broker:
        http = Http(broker)
        http.do("PUT", "users/ann", {"password": "ann", "tags": "management"}, 201)
        http.do("PUT", "permissions/%2F/ann", {"configure": "", "write": "", "read": ""}, 201)
        http.do("PUT", "exchanges/%2F/x", {"type": "topic"}, 201)
        for queue in ("q", "secret-queue"):
            http.do("POST", f"bindings/%2F/e/x/q/{queue}", {"routing_key": "key"}, 201)
        broker.publish("secret-queue", '{"id": 1}')
        broker.publish("secret-topic", '{"id": 1}')
        with penstock.connect(broker.flight_url) as guest:
            guest.action("stream_open", stream="secret-stream", queue="secret-queue")
            yield broker, f"penstock://ann:ann@{broker.flight_url.rpartition('@')[2]}"


def test_no_list_over_http_has_a_name_that_is_hidden(nameless: tuple[Broker, str]) -> None:
    broker, _ = nameless
    http, ann = Http(broker), Http(broker, "ann")
    seen, told, where = 0, 0, {"{vhost}": "%2F", "{name}": "x", "{exchange}": "x"}
    for path, methods in http.get("openapi.json")["paths"].items():
        if "get" not in methods or path == "/api/events" or path == "/api/openapi.json":
            continue
        filled = path
        for name, value in where.items():
            filled = filled.replace(name, value)
        if "{" in filled or not filled.startswith("/api/"):
            continue
        hers = ann.ask("GET", filled.removeprefix("/api/"))
        assert "secret" not in hers.text, (filled, hers.text)
        seen += hers.status_code == 200
        told += "secret" in http.ask("GET", filled.removeprefix("/api/")).text
    assert seen > 15
    assert told > 8  # administrators are told them, so they are there to be hidden
    assert len(ann.get("bindings")) == 2  # what she sees is not hidden


def test_no_list_over_flight_has_a_name_that_is_hidden(nameless: tuple[Broker, str]) -> None:
    broker, address = nameless

    def answers(url: str) -> Iterator[tuple[str, str]]:
        with penstock.connect(url) as client:
            for name in ("list", "topics", "exchanges", "bindings", "policies", "connections", "overview", "health",
                         "streams", "sinks", "vhosts", "tokens", "position"):  # fmt: skip
                try:
                    yield name, str(client.action(name, with_vhost=False))
                except PenstockError as error:
                    yield name, str(error)
            yield "bindings of an exchange", str(client.bindings(source="x"))
            yield "SHOW TABLES", str(client.query("SHOW TABLES").rows())

    for name, text in answers(address):
        assert "secret" not in text, (name, text)
    assert sum("secret" in text for _, text in answers(broker.flight_url)) > 4


def test_who_may_not_publish_is_not_told_whether_a_queue_is_there(nameless: tuple[Broker, str]) -> None:
    broker, address = nameless

    def told(queue: str) -> list[str]:
        words = {"properties": {}, "routing_key": queue, "payload": "x", "payload_encoding": "string"}
        out = [Http(broker, "ann").refused("POST", "exchanges/%2F/amq.default/publish", words, 401)]
        with penstock.connect(address) as ann, pytest.raises(AccessRefused) as caught:
            ann.publish(queue, b"x")
        return [text.replace(queue, "NAME") for text in (*out, str(caught.value))]

    assert told("secret-queue") == told("absent") == told("secret-view")


def test_records_of_all_kinds_are_for_administrators(tmp_path: Path) -> None:
    with FlightHouse(tmp_path) as house, penstock.connect(house.url) as client:
        client.declare("q")
        client.publish("q", b"x")
        assert [one["first"] for one in client.action("segments", with_vhost=False)["segments"]] == [1]
        assert sum(batch.num_rows for batch in client.log_batches()) > 1
        with penstock.connect(house.url.replace("guest:guest", "reader:reader")) as reader:
            assert [message.body for message in reader.replay("q", bookmark="EPOCH")] == [b"x"]
            assert reader.action("hold", with_vhost=False, read="r", start=1)["seconds"] == 600
            with pytest.raises(AccessRefused, match="tag 'administrator', which 'reader' does not have"):
                list(reader.log_batches())
            with pytest.raises(AccessRefused, match="segments"):
                reader.action("segments", with_vhost=False)
