"""Policies, parameters and definitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from http_lab import Http
from penstock.config.foreign import read_foreign
from penstock.config.foreign.converted import Verdict
from penstock.operations.vhosts import DELETE_POLICY
from penstock.records.password_hashes import SHA256
from penstock.server.http.definitions import Definitions, Sections, Taking, Undo
from penstock.server.people.access import NOBODY
from penstock.server.people.accounts import Account, Accounts, Kept
from penstock.testing import Broker
from sim.serverkit import Life, SimDisk, clock


def test_a_field_that_no_policy_has_is_refused_by_name(http: Http) -> None:
    http.refused("PUT", "policies/%2F/cap", {"pattern": "", "definition": {"message-ttl": 5}, "aply-to": "queues"}, 400)
    http.do("PUT", "policies/%2F/cap", {"pattern": "", "definition": {"message-ttl": 5}, "vhost": "/"}, 201)


def test_what_grows_with_queues_is_made_as_it_is_written(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object when it is asked for: others have their turn in between.  Bindings are in an order all the same."""
    section, at_once = Definitions.section, set[str]()

    def looked_at(self: Definitions, name: str, vhost: str | None) -> Iterable[Mapping[str, object]]:
        found = section(self, name, vhost)
        if not isinstance(found, Iterator):
            at_once.add(name)
        return found

    monkeypatch.setattr(Definitions, "section", looked_at)
    keys = [f"k{number * 7919 % 1000}" for number in range(600)]
    taken = {"bindings": [
        {"source": "amq.topic", "destination": "q", "destination_type": "queue", "vhost": "/", "routing_key": key}
        for key in keys
    ]}  # fmt: skip
    http.do("POST", "definitions", taken, 204)
    found = http.get("definitions")["bindings"]
    assert [one["routing_key"] for one in found] == sorted(keys)
    assert at_once.isdisjoint({"queues", "exchanges", "bindings"})


def test_a_policy_is_set_found_and_deleted(http: Http) -> None:
    policy = {"pattern": "^q", "definition": {"message-ttl": 60000}, "priority": 3, "apply-to": "queues"}
    http.do("PUT", "policies/%2F/cap", policy, 201)
    http.do("PUT", "policies/%2F/cap", policy, 204)
    assert http.get("policies/%2F/cap") == {"vhost": "/", "name": "cap", **policy}
    queue = http.get("queues/%2F/q")
    assert (queue["policy"], queue["effective_policy_definition"]) == ("cap", {"message-ttl": 60000})
    http.do("PUT", "operator-policies/%2F/low", {"pattern": "", "definition": {"message-ttl": 5}}, 201)
    queue = http.get("queues/%2F/q")
    assert (queue["operator_policy"], queue["effective_policy_definition"]) == ("low", {"message-ttl": 5})
    assert http.get("operator-policies") == http.get("operator-policies/%2F")
    assert [one["name"] for one in http.get("policies")] == ["cap"]
    assert http.get("policies/shop") == []
    http.do("DELETE", "policies/%2F/cap")
    http.do("DELETE", "policies/%2F/cap", status=404)
    http.do("GET", "policies/%2F/cap", status=404)
    assert http.get("queues/%2F/q")["policy"] is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"pattern": "^q"}, "definition is missing"),
        ({"definition": {"message-ttl": 1}}, "pattern"),
        ({"pattern": "(", "definition": {"message-ttl": 1}}, "pattern '('"),
        ({"pattern": "", "definition": {}}, "'p'"),
        ({"pattern": "", "definition": {"message-ttl": "3"}}, "message-ttl"),
        ({"pattern": "", "definition": {"colour": 1}}, "colour"),
        ({"pattern": "", "definition": {"message-ttl": 1}, "priority": "x"}, "priority is 'x', not a whole number"),
        ({"pattern": "", "definition": {"message-ttl": 1}, "apply-to": "all things"}, "apply-to 'all things'"),
    ],
)
def test_what_cannot_be_a_policy(http: Http, body: dict[str, object], reason: str) -> None:
    assert reason in http.refused("PUT", "policies/%2F/p", body)
    assert http.get("policies") == []


def test_a_key_that_is_there_twice_is_refused_by_name(http: Http) -> None:
    body = b'{"pattern": "", "definition": {"message-ttl": 1, "message-ttl": 2}}'
    for path, content in (
        ("policies/%2F/p", body),
        ("operator-policies/%2F/p", body),
        ("parameters/operator_policy/%2F/p", b'{"value": %s}' % body),
    ):
        answer = http.ask("PUT", path, content=content)
        assert (answer.status_code, answer.json()["reason"]) == (400, "the key 'message-ttl' is there twice")
    assert http.get("policies") == http.get("operator-policies") == []


def test_definitions_with_a_key_twice_are_refused_by_name(http: Http) -> None:
    for body, name in (
        (b'{"queues": [{"name": "a", "vhost": "/", "name": "b"}]}', "name"),
        (b'{"queues": [], "queues": [{"name": "a", "vhost": "/"}]}', "queues"),
        (b'{"queues": [{"name": "a", "vhost": "/", "name": "%s"}]}' % (b"b" * 300_000), "name"),  # read off the loop
    ):
        for path in ("definitions", "definitions/%2F"):
            answer = http.ask("POST", path, content=body)
            assert (answer.status_code, answer.json()["reason"]) == (400, f"the key '{name}' is there twice")
    assert [one["name"] for one in http.get("queues")] == ["q"]


def test_policies_are_for_those_with_the_tag(http: Http) -> None:
    policy = {"pattern": "", "definition": {"message-ttl": 1}}
    http.do("PUT", "users/ann", {"password": "ann", "tags": "policymaker"}, 201)
    http.do("PUT", "users/bob", {"password": "bob", "tags": "monitoring"}, 201)
    http.do("PUT", "permissions/%2F/ann", {"configure": "", "write": "", "read": ""}, 201)
    Http(http.broker, "ann").do("PUT", "policies/%2F/p", policy, 201)
    Http(http.broker, "ann").refused("PUT", "operator-policies/%2F/p", policy, 401)
    Http(http.broker, "bob").refused("DELETE", "policies/%2F/p", status=401)
    http.do("PUT", "policies/nowhere/p", policy, 404)


def test_parameters_are_operator_policies_and_limits(http: Http) -> None:
    value = {"pattern": "", "definition": {"message-ttl": 5}}
    http.do("PUT", "parameters/operator_policy/%2F/low", {"value": value})
    http.do("PUT", "parameters/vhost-limits/shop/limits", {"value": {"max-queues": 3}})
    both = http.get("parameters")
    assert [(one["component"], one["vhost"], one["name"]) for one in both] == [
        ("operator_policy", "/", "low"),
        ("vhost-limits", "shop", "limits"),
    ]
    assert http.get("parameters/vhost-limits/shop/limits")["value"] == {"max-queues": 3}
    assert http.get("parameters/operator_policy/%2F")[0]["value"]["definition"] == {"message-ttl": 5}
    http.do("DELETE", "parameters/operator_policy/%2F/low")
    http.do("DELETE", "parameters/vhost-limits/shop/limits")
    assert http.get("parameters") == []
    assert "component 'shovel' is not one of" in http.refused("PUT", "parameters/shovel/%2F/x", {"value": {}})


def fill(http: Http) -> None:
    """Something of every section."""
    http.do("PUT", "vhosts/late", {"description": "d"}, 201)
    http.do("PUT", "users/ann", {"password": "ann", "tags": "management"}, 201)
    http.do("PUT", "permissions/late/ann", {"configure": ".*", "write": "", "read": "^a"}, 201)
    http.do("PUT", "queues/late/a", {"arguments": {"x-message-ttl": 60000, "x-other": [1, {"b": None}]}}, 201)
    http.do("PUT", "queues/%2F/b", {"auto_delete": True}, 201)
    http.do("PUT", "exchanges/late/x", {"type": "topic", "arguments": {"alternate-exchange": "amq.fanout"}}, 201)
    http.do("POST", "bindings/late/e/x/q/a", {"routing_key": "k.#", "arguments": {"n": 1}}, 201)
    http.do("POST", "bindings/late/e/x/e/amq.topic", {"routing_key": ""}, 201)
    http.do("PUT", "policies/late/p", {"pattern": "^a", "definition": {"message-ttl": 5000}, "priority": 2}, 201)
    http.do("PUT", "operator-policies/late/o", {"pattern": "", "definition": {"expires": 90000}}, 201)
    http.do("PUT", "vhost-limits/late/max-queues", {"value": 7})
    http.do("PUT", "global-parameters/g", {"value": {"x": 1}}, 201)


def test_definitions_go_from_one_server_to_another(http: Http) -> None:
    fill(http)
    exported = http.get("definitions")
    assert exported["rabbit_version"] == "3.13.0"
    assert [one["name"] for one in exported["users"]] == ["ann"]
    with Broker({"queue": [{"name": "q"}], "vhost": [{"name": "shop"}]}) as broker:
        other = Http(broker)
        assert (
            other.ask("POST", "definitions", content=b"\xef\xbb\xbf" + json.dumps(exported).encode()).status_code == 204
        )
        assert other.get("definitions") == exported
        other.do("POST", "definitions", exported)
        assert other.get("definitions") == exported, "twice is once"
        assert Http(broker, "ann").get("whoami")["tags"] == ["management"]
        assert other.get("queues/late/a")["policy"] == "p"
        broker.crash()
        broker.restart()
        assert Http(broker).get("definitions") == exported


def test_definitions_of_one_vhost_do_not_name_it(http: Http) -> None:
    fill(http)
    exported = http.get("definitions/late")
    assert "users" not in exported
    lists: list[list[dict[str, object]]] = [part for part in exported.values() if isinstance(part, list)]
    assert not any("vhost" in one for part in lists for one in part)
    http.do("POST", "definitions/shop", exported)
    assert http.get("definitions/shop") == exported
    http.do("POST", "definitions/nowhere", exported, 404)


def bad(section: str, **item: object) -> dict[str, Any]:
    good: dict[str, list[dict[str, object]]] = {
        "users": [{"name": "new", "password_hash": "", "tags": ""}],
        "vhosts": [{"name": "new"}],
        "queues": [{"name": "new", "vhost": "new", "durable": True, "auto_delete": False, "arguments": {}}],
    }
    return {**good, section: [*good.get(section, []), item]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (bad("queues", name="z", vhost="nowhere"), "queues[1]: vhost 'nowhere' does not exist"),
        (bad("queues", name="z", arguments={"x-message-ttl": "soon"}), "'soon' is not a whole number"),
        (bad("queues", name=3), "queues[1]: name is 3, not a text"),
        (bad("exchanges", name="z", type="odd"), "'odd'"),
        (bad("bindings", source="amq.topic", destination="none", destination_type="queue", routing_key=""), "'none'"),
        (bad("bindings", source="none", destination="q", destination_type="queue", routing_key=""), "'none'"),
        (bad("policies", name="p", pattern="(", definition={"expires": 1}), "policies[0]: policy 'p': pattern '('"),
        (bad("parameters", component="shovel", name="s", value={}), "component 'shovel'"),
        (bad("users", name="eve", password_hash="x", tags=""), "users[1]: password_hash is not base64"),
        (bad("permissions", user="eve", vhost="new", configure="(", write="", read=""), "configure '(' is no regular"),
        ({**bad("queues", name="z"), "exchanges": 3}, "exchanges is 3, not a list"),
        ({"nothing": []}, "the document has none of users"),
    ],
)
def test_a_document_is_taken_whole_or_not_at_all(http: Http, body: dict[str, object], reason: str) -> None:
    before = http.get("definitions")
    status = 404 if reason == "'none'" else 400
    assert reason in http.refused("POST", "definitions", body, status)
    assert http.get("definitions") == before


def test_what_is_there_with_other_properties_is_left_alone(http: Http) -> None:
    queue = {"name": "q", "vhost": "/", "durable": False, "auto_delete": True, "arguments": {"x-message-ttl": 1}}
    http.do("POST", "definitions", {"queues": [queue]})
    assert http.get("queues/%2F/q")["durable"] is True


def test_exclusive_queues_are_not_exported(http: Http) -> None:
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url))
    channel = connection.channel()
    channel.queue_declare("mine", exclusive=True)
    channel.queue_bind("mine", "amq.topic", "k")
    exported = http.get("definitions")
    assert [one["name"] for one in exported["queues"]] == ["q"]
    assert exported["bindings"] == []
    connection.close()


OF_OTHER_TYPES: dict[str, list[dict[str, Any]]] = {
    "users": [{"name": "ann", "password_hash": "", "tags": [], "limits": {"max-connections": 2, "max-channels": -1}},
              {"name": "bob", "password_hash": "", "tags": [], "limits": []}],
    "vhosts": [{"name": "shop", "limits": {"max-queues": 9}}],
    "exchanges": [{"name": "events", "vhost": "shop", "type": "fanout", "durable": True, "auto_delete": False,
                   "internal": False, "arguments": {}}],
    "queues": [
        {"name": "jobs", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {
            "x-queue-type": "quorum", "x-max-length": 5, "x-quorum-initial-group-size": 3,
            "x-queue-leader-locator": "balanced", "x-dead-letter-strategy": "at-least-once"}},
        {"name": "few", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {
            "x-queue-type": "quorum", "x-delivery-limit": 3}},
        {"name": "feed", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {
            "x-queue-type": "stream", "x-max-age": "7D"}},
        {"name": "plain", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {}},
    ],
    "bindings": [
        {"source": "events", "vhost": "shop", "destination": name, "destination_type": "queue", "routing_key": "",
         "arguments": {}}
        for name in ("jobs", "feed", "plain")
    ],
}  # fmt: skip


def check_other_types(http: Http) -> None:
    """What `OF_OTHER_TYPES` has become."""
    queues = {one["name"]: one for one in http.get("queues/shop")}
    assert queues.keys() == {"jobs", "few", "feed", "plain"}
    assert {name: one["type"] for name, one in queues.items()} == {
        "jobs": "quorum", "few": "quorum", "feed": "stream", "plain": "classic",
    }  # fmt: skip
    assert http.get("queues/shop/feed")["penstock"]["settings"]["expiration"]["value"] == "1w"
    assert queues["jobs"]["arguments"] == OF_OTHER_TYPES["queues"][0]["arguments"]
    assert queues["jobs"]["durable"] is True
    settings = {name: http.get(f"queues/shop/{name}")["penstock"]["settings"] for name in ("jobs", "few", "plain")}
    limits = {name: found.get("delivery_limit", {}).get("value") for name, found in settings.items()}
    assert limits == {"jobs": 20, "few": 3, "plain": None}
    bound = {one["destination"] for one in http.get("bindings/shop") if one["source"] == "events"}
    assert bound == {"jobs", "feed", "plain"}
    assert http.get("user-limits") == [{"user": "ann", "value": {"max-connections": 2}}]
    assert http.get("vhost-limits") == [{"vhost": "shop", "value": {"max-queues": 9}}]


def test_queues_of_other_types_are_taken_with_what_is_lost_named(http: Http) -> None:
    told = http.do("POST", "definitions", OF_OTHER_TYPES, 200)["warnings"]
    assert [one.split("'")[1] for one in told] == ["jobs", "few", "feed"]
    for one in told[:2]:
        assert "copies on other nodes" in one
    for what in ("copies on other nodes", "the stream protocol", "places in the one log"):
        assert what in told[2]
    check_other_types(http)
    again = http.do("POST", "definitions", OF_OTHER_TYPES, 200)["warnings"]
    assert again == told
    check_other_types(http)


def test_what_other_nodes_would_do_stops_nothing(http: Http) -> None:
    usual = {"vhost": "/", "pattern": "", "apply-to": "all", "priority": 0}
    policies = [
        {**usual, "name": "only", "definition": {"ha-mode": "all"}},
        {**usual, "name": "both", "definition": {"ha-mode": "all", "message-ttl": 9000}},
    ]
    vhosts = [{"name": "shop", "default_queue_type": "quorum", "description": "d"}]
    made = {"name": "amq.gen-7EZF7WjGIQFDoXexVF", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    told = http.do("POST", "definitions", {"policies": policies, "vhosts": vhosts, "queues": [made]}, 200)["warnings"]
    assert [one.partition(":")[0] for one in told] == ["policies[0]", "policies[1]"]
    assert [(one["name"], one["definition"]) for one in http.get("policies")] == [("both", {"message-ttl": 9000})]
    assert http.get("vhosts/shop")["description"] == "d"
    assert http.get("vhosts/shop")["default_queue_type"] == "quorum"
    assert http.get(f"queues/%2F/{made['name']}")["durable"] is True
    core = Life(SimDisk(), clock(), config={"queue": [{"name": made["name"]}]}).core
    assert core.find_queue("/", str(made["name"])) is not None
    assert "ha-mode" in http.refused("PUT", "policies/%2F/p", {"pattern": "", "definition": {"ha-mode": "all"}})


def test_what_an_export_cannot_tell_of_a_binding_is_told(http: Http, tmp_path: Path) -> None:
    """RabbitMQ writes a text for a value that is none: the binding asked for that text, and nobody was told."""
    arguments = {"x-match": "any", "v": "undefined", "s": "x"}
    document = {"bindings": [
        {"source": "amq.headers", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "",
         "arguments": one}
        for one in (arguments, {**arguments, "v": "x"})
    ]}  # fmt: skip
    [told] = http.do("POST", "definitions", document, 200)["warnings"]
    assert told.startswith("bindings[0]: binding of 'amq.headers' to 'q': v: 'undefined' is a text here.")
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(document))
    [remark] = read_foreign(file).remarks
    assert (remark.verdict, remark.place.what) == (Verdict.DIFFERS, 'bindings[0] "amq.headers" to "q"')
    assert remark.text.startswith("v: 'undefined' is a text here.")


def test_applications_find_the_queue_that_stands_for_a_quorum_queue(http: Http) -> None:
    http.do("POST", "definitions", OF_OTHER_TYPES, 200)
    url = http.broker.amqp_url.rsplit("/", 1)[0] + "/shop"
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        arguments = OF_OTHER_TYPES["queues"][0]["arguments"]
        assert connection.channel().queue_declare("jobs", durable=True, arguments=arguments).method.queue == "jobs"
        for name, wrong in (("jobs", {"x-queue-type": "quorum"}), ("new", {"x-queue-type": "square"})):
            with pytest.raises(ChannelClosedByBroker) as refused:
                connection.channel().queue_declare(name, durable=True, arguments=wrong)
            assert refused.value.reply_code == 406


def test_the_same_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({**OF_OTHER_TYPES, "users": []}))
    converted = read_foreign(file)
    assert [one.verdict for one in converted.remarks] == [Verdict.DIFFERS] * 3
    core = Life(SimDisk(), clock(), config=converted.settings).core
    queues = {one.name: one for one in core.queues()}
    assert {name: (one.settings.queue_type, one.settings.delivery_limit) for name, one in queues.items()} == {
        "jobs": ("quorum", 20), "few": ("quorum", 3), "feed": ("stream", -1), "plain": ("classic", -1),
    }  # fmt: skip
    assert queues["feed"].settings.expiration == 7 * 86_400 * 1_000_000
    assert queues["jobs"].arguments == OF_OTHER_TYPES["queues"][0]["arguments"]


def test_what_a_server_exported_is_served_as_a_file(http: Http, tmp_path: Path) -> None:
    fill(http)
    file = tmp_path / "definitions.json"
    exported = http.get("definitions")
    for one in exported["queues"]:
        one["arguments"].pop("x-other", None)  # with a null, which settings do not have
    file.write_text(json.dumps(exported))
    assert [one.text for one in read_foreign(file).remarks if one.verdict is Verdict.REFUSED] == []
    with Broker(config=file) as broker:
        assert Http(broker, "ann").get("whoami")["tags"] == ["management"]
        assert Http(broker, "ann").get("queues/late/a")["policy"] == "p"


@pytest.mark.parametrize(
    ("section", "fields"),
    [
        ("vhosts", {"name": "new", "default_queue_type": ["quorum"]}),
        ("vhosts", {"name": "new", "default_queue_type": {}}),
        ("global_parameters", {"name": "deep", "value": json.loads("[" * 300 + "]" * 300)}),
    ],
)
def test_values_of_odd_types_are_refused(http: Http, section: str, fields: dict[str, object]) -> None:
    before = http.get("definitions")
    assert f"{section}[0]: " in http.refused("POST", "definitions", {section: [fields]})
    if section == "vhosts":
        http.refused("PUT", "vhosts/new", {"default_queue_type": fields["default_queue_type"]})
    assert http.get("definitions") == before


def test_a_document_that_is_refused_takes_back_what_it_made_and_nothing_else(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others changed meanwhile stays: a user who was removed does not come back."""
    for name in ("ann", "bob", "cid"):
        http.do("PUT", f"users/{name}", {"password": name, "tags": ""}, 201)
    take, make, asked = Definitions.take, Taking.make, list[Definitions]()

    async def taken(self: Definitions, sections: Sections, vhost: str | None) -> Sequence[str]:
        asked.append(self)
        return await take(self, sections, vhost)

    async def meanwhile(self: Taking, undo: Undo) -> None:
        [house] = asked

        def work(there: Accounts) -> None:
            there.forget_user("ann")
            there.users["bob"] = Account("bob", Kept("", SHA256), ("policymaker",))
            there.vhosts["other"] = {}

        await house.change(work)
        try:
            await make(self, undo)
        finally:  # somebody else has deleted what is to be undone
            await house.operate(DELETE_POLICY, NOBODY, {"policy": "p", "vhost": "/", "operator": False})

    monkeypatch.setattr(Definitions, "take", taken)
    monkeypatch.setattr(Taking, "make", meanwhile)
    body = {
        "users": [{"name": name, "password": "x", "tags": "monitoring"} for name in ("bob", "cid", "dan")],
        "vhosts": [{"name": "new"}],
        "policies": [{"name": "p", "vhost": "/", "pattern": "", "definition": {"max-length": 9}}],
        "exchanges": [{"name": "first", "vhost": "/", "type": "fanout"}],
        "bindings": [{"source": "first", "destination": "none", "destination_type": "queue", "routing_key": ""}],
    }
    assert "'none'" in http.refused("POST", "definitions", body, 404)
    users = {one["name"]: one["tags"] for one in http.get("users")}
    assert users == {"guest": ["administrator"], "bob": ["policymaker"], "cid": []}
    assert {one["name"] for one in http.get("vhosts")} == {"/", "shop", "other"}
    http.do("GET", "exchanges/%2F/first", status=404)
