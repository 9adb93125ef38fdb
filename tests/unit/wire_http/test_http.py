"""The HTTP door: what probes, dashboards and RabbitMQ's tools read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import cast

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.core.queue.limits import Figures
from penstock.server.counters import STATS, Counts
from penstock.server.http import facts as real
from penstock.server.http import overview
from penstock.server.http.door import KEPT_S, Application
from penstock.server.http.metrics import ACTIONS, QUEUES, TOPICS, VIEWS, Line, Metrics
from penstock.server.http.reception import Reception, credentials
from penstock.server.http.routes import RABBITMQ_VERSION
from penstock.server.people.access import Who
from penstock.server.people.users import Users
from penstock.server.sums import Seen, Sums


def queue_line(vhost: str, name: str, ready: int, leased: int = 0, delayed: int = 0, consumers: int = 0) -> Line:
    """Of a queue that has these messages and consumers, and has counted nothing."""
    queue = SimpleNamespace(
        vhost=vhost, name=name, available=ready, leased=leased, delayed=delayed, inactive=0, barriers_waiting=0,
        outstanding=leased, paused=False, arrived=0, duplicates=0,
        foreign_count=0,
    )  # fmt: skip
    none = (
        "ready_bytes deferred_acks cancelled ack_rate oldest_lease behind transferred_in transferred_out double proxied"
    )
    nothing = dict.fromkeys(none.split(), 0)
    seen = SimpleNamespace(
        queue=queue, weight=SimpleNamespace(messages=0), figures=Figures(), messages=ready + leased + delayed,
        consumers=consumers, lease_to_ack={}, **nothing,
    )  # fmt: skip
    return QUEUES.look(seen)


class Facts(real.Facts):
    """A server that says what it is told to say."""

    version, node = "0.1.0", "one"

    def membership(self) -> Mapping[str, object]:
        return {}

    def links(self) -> Sequence[Mapping[str, object]]:
        return []

    def __init__(self) -> None:
        self.users = cast("Users", SimpleNamespace(who=self.who, tags=lambda user: self.who(user).tags))
        self.vhosts = ["/", "shop"]
        self.status = "ok"
        self.open = True
        self.scrapes = 0
        self.logins: list[tuple[str, str, str]] = []
        common: dict[str, object] = {"ack_required": True, "exclusive": False, "prefetch": 0, "active": True}
        self.consuming: list[dict[str, object]] = [
            {**common, "kind": "queue", "vhost": "/", "queue": "to-ship", "tag": "a", "client": "10.0.0.1:5000/2",
             "user": "guest", "unacknowledged": 2},
            {**common, "kind": "replay", "vhost": "/", "queue": "to-ship", "tag": "b", "client": "[::1]:5001/1",
             "user": "guest", "unacknowledged": 0, "state": "behind", "bookmark": "9|7|", "lag": 12},
            {**common, "kind": "queue", "vhost": "shop", "queue": "jobs", "tag": "c", "client": "worker-7", "user": "",
             "unacknowledged": 1},
        ]  # fmt: skip
        self.made: list[str] = []  # names of the queues of which all was made for a page
        self.present: list[dict[str, object]] = [
            {"name": "to-ship", "vhost": "/", "ready": 3, "leased": 2, "delayed": 1, "ready_bytes": 30, "consumers": 1},
            {"name": "a/b", "vhost": "/", "durable": False, "ready": 9},
            {"name": "jobs", "vhost": "shop", "settings": {"lease_period": "30s"}},
        ]

    left: Mapping[str, float] = MappingProxyType({})  # seconds of each certificate
    standing = "administrator"  # the tag of everybody
    opened = False  # metrics of each object are for all

    def open_metrics(self) -> bool:
        return self.opened

    @property
    def behind(self) -> int:
        return 0

    def health(self) -> Mapping[str, object]:
        return {"status": self.status, "name": "one", "sync": "commit"}

    def ready(self) -> bool:
        return self.open

    def overview(self) -> Mapping[str, object]:
        return {"settings": {"server.sync": {"value": "commit", "from": "default"}}}

    def queues(self, user: str) -> Sequence[Mapping[str, object]]:
        return self.present

    def whole(self, one: dict[str, object]) -> dict[str, object]:
        self.made.append(str(one["name"]))
        return one

    def short_queues(self, user: str, vhost: str | None, sort: str) -> Sequence[dict[str, object]]:
        return [
            {
                "messages": sum(int(str(one.get(state, 0))) for state in ("ready", "leased", "delayed")),
                **one,
                "make": partial(self.whole, one),
            }
            for one in self.present
            if vhost in {None, one["vhost"]}
        ]

    def queue(self, vhost: str, name: str, user: str) -> Mapping[str, object] | None:
        return next((one for one in self.present if (one["vhost"], one["name"]) == (vhost, name)), None)

    def consumers(self, user: str, vhost: str | None, queue: str | None = None) -> Sequence[Mapping[str, object]]:
        return [
            one
            for one in self.consuming
            if (vhost is None or one["vhost"] == vhost) and (queue is None or one["queue"] == queue)
        ]

    def queue_metrics(self) -> Sequence[Line]:
        return [queue_line("/", "to-ship", 3, 2, 1, consumers=1), queue_line("shop", 'odd "name"\n', 4)]

    def scraped(self) -> None:
        self.scrapes += 1

    def metrics(self) -> Metrics:
        views = [("totals", 4, 5, 1, False), ("late", 2, 3, 0, True)]
        return Metrics(
            node="one",
            version="0.1.0",
            figures={
                "rabbitmq_global_messages_received": 12,
                "rabbitmq_queues_created": 3,
                "penstock_replays": 3,
                "penstock_replays_paused": 1,
                "penstock_replays_live": 1,
                "penstock_replay_messages": 40,
                "penstock_replay_lag_records": 9,
                "penstock_views_unnamed": 6,
                "rabbitmq_disk_space_available_bytes": 1 << 30,
                "penstock_broken": True,
            },
            dead_lettered={"expired": 5},
            lines={
                "actions": [ACTIONS.look(SimpleNamespace(name="bury", runs=7, reasons={"publish": 2, "waiting": 1}))],
                "views": [
                    VIEWS.look(
                        {
                            "vhost": "/",
                            "name": name,
                            "records": records,
                            "lag": lag,
                            "rebuilds": anew,
                            "stopped": end,
                            "error": None,
                        }
                    )
                    for name, records, lag, anew, end in views
                ],
                "topics": [
                    TOPICS.look(
                        {
                            "vhost": "/",
                            "exchange": of,
                            "name": "orders",
                            "records": count,
                            "index_bytes": 80 * count,
                            "schema_failed": count // 5,
                        }
                    )
                    for of, count in (("", 10), ("x", 5))
                ],
            },
        )

    async def login(self, user: str, password: str, host: str, derive: object = None) -> float | None:
        self.logins.append((user, password, host))
        if user == "hasty":
            return 2.5
        return None if (user, password) == ("guest", "guest") else 0.0

    def who(self, user: str) -> Who:
        return Who(user, (self.standing,))

    def working(self, who: Who) -> AbstractContextManager[None]:
        return nullcontext()

    def segments(self) -> Mapping[str, object]:
        return {"segments": []}

    def topics(self, user: str) -> Sequence[Mapping[str, object]]:
        return []

    views = streams = lambda self: ()

    def process(self) -> Mapping[str, object]:
        return {"uptime": 5, "processors": 2}

    def listeners(self) -> Sequence[Mapping[str, object]]:
        return []

    def certificates_left(self) -> Mapping[str, float]:
        return self.left

    def exchange_types(self) -> Sequence[str]:
        return ["direct"]

    def mono(self) -> int:
        return 0

    def seen(self, who: Who) -> Seen:
        async def queues() -> Sums:
            return Sums(queues=2, ready=7, leased=2, delayed=1, consumers=1)

        def counts(_: str | None) -> Counts:
            return 12, *[0] * (len(STATS) - 1)

        there = {"exchanges": lambda: 14, "connections": lambda: (1, 2), "queues": queues, "counts": counts}
        return cast("Seen", SimpleNamespace(everything=True, whose="", **there))


def created(facts: Facts, kept_s: float = KEPT_S) -> Reception:
    """The application behind its reception."""
    app = Application(facts, kept_s=kept_s)
    return Reception(app, app.open)


class Client:
    """Asks the application without a socket."""

    def __init__(self, facts: Facts, auth: tuple[str, str] | None) -> None:
        self._transport = httpx.ASGITransport(created(facts, kept_s=0.0), client=("127.0.0.1", 1))
        self._auth = auth

    def ask(self, method: str, path: str) -> httpx.Response:
        async def answer() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, auth=self._auth) as client:
                return await client.request(method, f"http://server{path}")

        return asyncio.run(answer())

    def get(self, path: str) -> httpx.Response:
        return self.ask("GET", path)


@pytest.fixture
def facts() -> Facts:
    return Facts()


@pytest.fixture
def client(facts: Facts) -> Client:
    return Client(facts, ("guest", "guest"))


def test_health_and_readiness_follow_the_server(facts: Facts, client: Client) -> None:
    assert client.get("/healthz").json()["status"] == "ok"
    assert client.get("/readyz").status_code == 200
    for stranger in (client, Client(facts, None)):
        assert stranger.get("/readyz/").status_code == stranger.get("/metrics/").status_code == 200
        assert stranger.get("/cli/rabbitmqadmin/").status_code == 200
    assert facts.logins == []
    facts.status, facts.open = "broken", False
    assert client.get("/healthz").status_code == 503
    assert client.get("/readyz").status_code == 503
    assert facts.logins == []


@pytest.mark.parametrize(
    "path", ["/api/overview", "/api/queues", "/api/queues/%2F/to-ship", "/api/nothing", "/other", "//healthz"]
)
def test_everything_else_asks_for_a_login(facts: Facts, path: str) -> None:
    answer = Client(facts, None).get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic realm=")
    assert answer.json()["error"] == "not_authorized"
    assert Client(facts, ("guest", "wrong")).get(path).status_code == 401


def test_the_address_of_the_client_decides_too(facts: Facts, client: Client) -> None:
    client.get("/api/whoami")
    assert facts.logins == [("guest", "guest", "127.0.0.1")]


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Basic !!!", "Basic Z3Vlc3Q=", "Bearer Z3Vlc3Q6Z3Vlc3Q=", "Basic " + "A" * 5000, "Basic /w=="],
)
def test_broken_logins_are_no_logins(header: str) -> None:
    assert credentials(header) is None


def test_a_password_may_hold_colons() -> None:
    assert credentials("Basic dTphOmI=") == ("u", "a:b")


def test_a_queue_has_the_fields_that_tools_read(client: Client) -> None:
    queue = client.get("/api/queues/%2F/to-ship").json()
    assert queue["messages"] == 6
    assert queue["messages_ready"] == 3
    assert queue["messages_unacknowledged"] == 2
    assert queue["message_bytes_ready"] == 30
    assert queue["consumers"] == 1
    assert queue["type"] == "classic"
    assert queue["node"] == "one"
    assert queue["penstock"]["delayed"] == 1
    assert client.get("/api/queues/shop/jobs").json()["penstock"]["settings"] == {"lease_period": "30s"}


def test_lists_by_vhost(client: Client) -> None:
    assert [one["name"] for one in client.get("/api/queues").json()] == ["to-ship", "a/b", "jobs"]
    detailed = client.get("/api/queues/detailed?columns=name&page=1&page_size=2").json()
    assert (detailed["items"], detailed["total_count"]) == ([{"name": "to-ship"}, {"name": "a/b"}], 3)
    assert [one["name"] for one in client.get("/api/queues/%2F").json()] == ["to-ship", "a/b"]
    assert [one["name"] for one in client.get("/api/queues/shop").json()] == ["jobs"]


def test_names_with_slashes_keep_them(client: Client) -> None:
    assert client.get("/api/queues/%2F/a%2Fb").json()["durable"] is False


@pytest.mark.parametrize(
    "path",
    ["/api/queues/nowhere", "/api/queues/%2F/absent", "/api/queues/%2F/a/b", "/api/queues//", "/api/nothing", "/x"],
)
def test_what_is_not_there_is_404_in_their_shape(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json() == {"error": "Object Not Found", "reason": "Not Found"}


def test_other_methods_are_refused(client: Client) -> None:
    assert client.ask("POST", "/api/queues").status_code == 405
    assert client.ask("DELETE", "/api/queues/%2F/to-ship").json() == {
        "error": "method_not_allowed",
        "reason": "Method Not Allowed",
    }


def test_sorting_choosing_and_paging(client: Client) -> None:
    answer = client.get("/api/queues?sort=messages_ready&sort_reverse=true&columns=name,penstock.delayed").json()
    assert answer[0] == {"name": "a/b", "penstock": {"delayed": 0}}
    page = client.get("/api/queues?page=2&page_size=2&columns=name").json()
    assert page == {
        "filtered_count": 3,
        "item_count": 1,
        "items": [{"name": "jobs"}],
        "page": 2,
        "page_count": 2,
        "page_size": 2,
        "total_count": 3,
    }
    assert client.get("/api/queues?name=SHIP&page=1").json()["filtered_count"] == 1
    assert [one["name"] for one in client.get("/api/queues?name=^j&use_regex=true").json()] == ["jobs"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("page=0", "page is '0', not a whole number from 1 to 1000000000"),
        ("page=x", "page is 'x', not a whole number"),
        ("page=9", "page 9 is beyond the last one, 1"),
        ("page=1&page_size=501", "page_size is '501', not a whole number from 1 to 500"),
        ("name=(&use_regex=true", "name '(' is no regular expression that RE2 reads: missing )"),
        (f"name={'n' * 257}", "name has 257 characters, 256 are allowed"),
    ],
)
def test_a_query_that_cannot_be_used_is_400(client: Client, query: str, reason: str) -> None:
    answer = client.get(f"/api/queues?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"] == "bad_request"
    assert answer.json()["reason"].startswith(reason)


def test_overview_and_whoami(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Facts, "queue_metrics", None)  # of ten thousand queues they take a fifth of a second
    overview = client.get("/api/overview").json()
    assert overview["queue_totals"]["messages_ready"] == 7
    assert overview["object_totals"]["queues"] == 2
    assert overview["message_stats"]["publish"] == 12
    assert overview["penstock"]["settings"]["server.sync"]["from"] == "default"
    assert client.get("/api/whoami").json() == {"name": "guest", "tags": ["administrator"]}


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_have_the_names_that_dashboards_use(client: Client) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(answer.text)
    assert found["rabbitmq_queue_messages_ready", ()] == 7
    assert found["rabbitmq_queue_messages", ()] == 10
    assert found["rabbitmq_queues", ()] == 2
    assert found["rabbitmq_global_messages_received_total", (("protocol", "amqp091"),)] == 12
    labels = (("dead_letter_strategy", "at_least_once"), ("queue_type", "rabbit_classic_queue"))
    assert found["rabbitmq_global_messages_dead_lettered_expired_total", labels] == 5
    assert found["rabbitmq_global_messages_dead_lettered_confirmed_total", labels] == 5
    assert found["rabbitmq_connections_opened_total", ()] == 0
    assert found["rabbitmq_disk_space_available_bytes", ()] == 1 << 30
    assert found["penstock_broken", ()] == 1
    [what] = [dict(labels) for name, labels in found if name == "rabbitmq_build_info"]
    version = {"rabbitmq_version": RABBITMQ_VERSION, "erlang_version": "none"}
    assert what == {"product_name": "Penstock", "product_version": "0.1.0", **version}
    [who] = [dict(labels) for name, labels in found if name == "rabbitmq_identity_info"]
    assert who["rabbitmq_cluster"] == who["rabbitmq_node"] != ""


def test_an_alarm_of_memory_is_told_everywhere(facts: Facts, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert samples(client.get("/metrics").text)["rabbitmq_alarms_memory_used_watermark", ()] == 0
    assert client.get("/api/nodes").json()[0]["mem_alarm"] is False
    tight = replace(
        facts.metrics(),
        figures={"rabbitmq_alarms_memory_used_watermark": True, "rabbitmq_resident_memory_limit_bytes": 99},
    )
    monkeypatch.setattr(facts, "metrics", lambda: tight)
    found = samples(client.get("/metrics").text)
    assert found["rabbitmq_alarms_memory_used_watermark", ()] == 1
    assert found["rabbitmq_resident_memory_limit_bytes", ()] == 99
    assert client.get("/api/nodes").json()[0]["mem_alarm"] is True


def test_metrics_of_each_queue_escape_names(client: Client) -> None:
    found = samples(client.get("/metrics/per-object").text)
    assert found["rabbitmq_queue_messages_ready", (("queue", 'odd "name"\n'), ("vhost", "shop"))] == 4


def test_a_long_list_is_whole_and_in_order(facts: Facts, client: Client) -> None:
    facts.present = [{"name": f"q{n * 7919 % 1000:03}", "vhost": "/", "ready": n % 5} for n in range(1000)]
    whole = client.get("/api/queues").json()
    assert [one["name"] for one in whole] == [one["name"] for one in facts.present]
    ordered = client.get("/api/queues?sort=name&sort_reverse=true&columns=name").json()
    assert [one["name"] for one in ordered] == [f"q{n:03}" for n in reversed(range(1000))]
    by_depth = client.get("/api/queues?sort=messages&page=2&page_size=300").json()
    assert [one["messages"] for one in by_depth["items"]] == [1] * 100 + [2] * 200
    equal = [str(one["name"]) for one in facts.present if one["ready"] == 1][100:]
    assert [one["name"] for one in by_depth["items"]][:100] == equal, "equals keep their order"


@pytest.mark.parametrize("sort", ["", "name", "vhost", "messages"])
def test_of_a_page_only_what_it_shows_is_looked_at(facts: Facts, client: Client, sort: str) -> None:
    facts.present = [{"name": f"q{n * 7919 % 1000:03}", "vhost": ("/", "shop")[n % 2]} for n in range(1000)]
    query = f"sort={sort}&sort_reverse=true&page=2&page_size=20&columns=name,vhost"
    page = client.get(f"/api/queues?{query}").json()
    every = client.get(f"/api/queues?{query.replace('&page=2&page_size=20', '')}").json()
    assert page["items"] == every[20:40]
    assert (page["item_count"], page["filtered_count"], page["total_count"], page["page_count"]) == (20, 1000, 1000, 50)
    assert facts.made == [one["name"] for one in page["items"]]


def test_what_is_kept_since_the_last_scrape_begins_anew_with_each(facts: Facts, client: Client) -> None:
    client.get("/api/overview")
    assert facts.scrapes == 0
    client.get("/metrics")
    client.get("/metrics/per-object")
    assert facts.scrapes == 2


async def test_who_scrapes_within_a_second_gets_what_was_found_and_one_looks_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many ask, and who has no login asks for sums alone."""
    facts, running, most = Facts(), 0, 0
    app = created(facts, kept_s=3600.0)

    async def counted(_: object) -> Metrics:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return facts.metrics()

    monkeypatch.setattr(overview, "all_metrics", counted)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        login = httpx.BasicAuth("guest", "guest")
        ways = [("/metrics", None), ("/metrics/per-object", login)] * 20
        answers = await asyncio.gather(*(client.get(path, auth=auth) for path, auth in ways))
        assert {answer.status_code for answer in answers} == {200}
        assert (facts.scrapes, most) == (1, 1)
        assert (await client.get("/metrics/per-object")).status_code == 401
        monkeypatch.setattr(Facts, "standing", "management")
        assert (await client.get("/metrics/per-object", auth=login)).status_code == 401
        monkeypatch.setattr(Facts, "opened", True)
        opened = httpx.ASGITransport(app=created(facts))
    async with httpx.AsyncClient(transport=opened, base_url="http://here") as client:
        assert (await client.get("/metrics/per-object")).status_code == 200


def test_metrics_of_parts_that_are_no_queues(client: Client) -> None:
    summed, each = samples(client.get("/metrics").text), samples(client.get("/metrics/per-object").text)
    for found in (summed, each):
        assert found["penstock_replays", ()] == 3
        assert found["penstock_replay_messages_total", ()] == 40
        assert found["penstock_replay_lag_records", ()] == 9
        assert found["penstock_views", ()] == 2
        assert found["penstock_views_unnamed", ()] == 6
    assert each["penstock_action_runs_total", (("action", "bury"),)] == 7
    assert each["penstock_action_failures_total", (("action", "bury"), ("reason", "publish"))] == 2
    assert each["penstock_action_failures_total", (("action", "bury"), ("reason", "rounds"))] == 0
    assert summed["penstock_action_runs_total", ()] == 7
    assert summed["penstock_action_failures_total", (("reason", "publish"),)] == 2
    assert summed["penstock_action_failures_total", (("reason", "rounds"),)] == 0
    assert summed["penstock_view_records", ()] == 6
    assert summed["penstock_view_lag_records", ()] == 5, "the one that is furthest behind"
    assert summed["penstock_view_errors", ()] == 1
    assert summed["penstock_view_rebuilds_total", ()] == 1
    assert summed["penstock_sow_records", ()] == 15
    late = (("vhost", "/"), ("view", "late"))
    assert (each["penstock_view_records", late], each["penstock_view_errors", late]) == (2, 1)
    assert each["penstock_sow_records", (("exchange", "x"), ("topic", "orders"), ("vhost", "/"))] == 5


def test_consumers_have_the_fields_that_tools_read(client: Client) -> None:
    first, second, third = client.get("/api/consumers").json()
    assert first["channel_details"] == {
        "connection_name": "10.0.0.1:5000",
        "name": "10.0.0.1:5000 (2)",
        "node": "one",
        "number": 2,
        "peer_host": "10.0.0.1",
        "peer_port": 5000,
        "user": "guest",
    }
    assert first["queue"] == {"name": "to-ship", "vhost": "/"}
    assert first["penstock"] == {"kind": "queue", "unacknowledged": 2}
    assert second["penstock"] == {
        "kind": "replay",
        "unacknowledged": 0,
        "state": "behind",
        "bookmark": "9|7|",
        "lag": 12,
    }
    assert second["channel_details"]["peer_host"] == "::1"
    assert third["channel_details"]["connection_name"] == "worker-7"
    assert [one["consumer_tag"] for one in client.get("/api/consumers/shop").json()] == ["c"]
    assert client.get("/api/consumers/nowhere").status_code == 404
    details = client.get("/api/queues/%2F/to-ship").json()["consumer_details"]
    assert [one["consumer_tag"] for one in details] == ["a", "b"]


def test_each_request_is_heard_when_there_is_time_and_only_then(facts: Facts) -> None:
    async def go() -> None:
        let_go, asked = asyncio.Event(), asyncio.Event()

        async def heard() -> None:
            asked.set()
            await let_go.wait()

        app = Application(facts, heard=heard)
        transport = httpx.ASGITransport(Reception(app, app.open), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, auth=("guest", "guest")) as client:
            one = asyncio.ensure_future(client.get("http://server/api/whoami"))
            await asked.wait()
            for _ in range(10):
                await asyncio.sleep(0)
            assert not facts.logins
            let_go.set()
            assert (await one).status_code == 200
        assert len(facts.logins) == 1

    asyncio.run(go())
