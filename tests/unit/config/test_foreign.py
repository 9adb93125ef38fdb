"""Settings files of others: which file is whose, bounds of XML, RabbitMQ's definitions, Artemis' broker.xml."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pika
import pika.exceptions
import pytest

from penstock.config.foreign import Converted, Verdict, is_foreign, read_foreign
from penstock.config.foreign.converted import DEPTH_MAX, to_toml
from penstock.config.load import judged, load_file, load_text
from penstock.errors import SettingsError
from penstock.records.queue_settings import Retry
from penstock.testing import Broker


def file(folder: Path, text: str | bytes) -> Path:
    path = folder / "settings"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(folder: Path, text: str | bytes, **environ: str) -> str:
    path = file(folder, text)
    with pytest.raises(SettingsError) as caught:
        read_foreign(path, environ)
    return str(caught.value).replace(str(path), "FILE")


def remarks(converted: Converted) -> set[tuple[Verdict, str]]:
    return {(remark.verdict, remark.place.what) for remark in judged(converted)}


# --- whose file -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        (b"<AMPSConfig/>", True),
        (b"\xef\xbb\xbf\n <?xml version='1.0'?>", True),
        (b'{"queues": []}', True),
        (b"[server]\n", False),
        (b"# a comment\n", False),
        (b"", False),
    ],
)
def test_the_first_bytes_tell_whose_file_it_is(text: bytes, foreign: bool) -> None:
    assert is_foreign(text) is foreign


@pytest.mark.parametrize("text", ["<AMPSConfig><Name>one</Name></AMPSConfig>", "[server]\nname = 'one'\n"])
def test_a_file_is_read_once_for_it_may_be_a_pipe(tmp_path: Path, text: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(pipe.write_text, text)
        assert load_file(pipe).server.name == "one"
        written.result()


def test_a_missing_file_is_told_as_ever(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.xml: cannot be read: No such file"):
        load_file(tmp_path / "none.xml")


def test_xml_of_somebody_else_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "<project/>") == (
        "FILE:1: <project> begins no settings file that is known here: "
        "there are <AMPSConfig> of AMPS and <configuration> of Artemis"
    )
    assert "has none of users, vhosts" in refusal(tmp_path, '{"name": "package"}')


# --- bounds of XML --------------------------------------------------------------------------------------------------


def test_entities_and_external_files_stay_outside(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    external = f'<!DOCTYPE AMPSConfig [<!ENTITY x SYSTEM "{secret}">]><AMPSConfig><Name>&x;</Name></AMPSConfig>'
    assert "<!DOCTYPE>) is not accepted" in refusal(tmp_path, external)
    assert "is not XML: undefined entity" in refusal(tmp_path, "<AMPSConfig><Name>&x;</Name></AMPSConfig>")


def test_nesting_and_size_have_bounds(tmp_path: Path) -> None:
    deep = "<AMPSConfig>" + "<a>" * DEPTH_MAX + "</a>" * DEPTH_MAX + "</AMPSConfig>"
    assert refusal(tmp_path, deep) == f"FILE:1: <a> is nested deeper than {DEPTH_MAX} elements"
    assert "more than 100,000 elements" in refusal(tmp_path, "<AMPSConfig>" + "<a/>" * 100_001 + "</AMPSConfig>")
    assert "is larger than 5,000,000 bytes" in refusal(tmp_path, b"<AMPSConfig>" + b" " * 5_000_000)


def test_an_unknown_encoding_is_told(tmp_path: Path) -> None:
    assert refusal(tmp_path, '<?xml version="1.0" encoding="x-none"?><AMPSConfig/>').startswith("FILE:1: is not XML")


def test_includes_stay_in_the_folder_also_through_links(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "sow.xml").write_text("<SOW/>")
    (inside / "link.xml").symlink_to(outside / "sow.xml")
    for name in ("../outside/sow.xml", "link.xml", str(outside / "sow.xml")):
        said = refusal(inside, f"<AMPSConfig><Include>{name}</Include></AMPSConfig>")
        assert said == f"FILE:1: <Include>: {name!r} is outside of the folder of FILE"


def test_includes_do_not_go_round_or_on_for_ever(tmp_path: Path) -> None:
    for at in range(10):
        (tmp_path / f"{at}.xml").write_text(f"<SOW><Include>{at + 1}.xml</Include></SOW>")
    assert "8.xml' is more than 8 levels deep" in refusal(tmp_path, "<SOW><Include>0.xml</Include></SOW>")
    (tmp_path / "a.xml").write_text("<SOW/>")
    many = "<AMPSConfig>" + "<Include>a.xml</Include>" * 64 + "</AMPSConfig>"
    assert "'a.xml' is one file more than 64" in refusal(tmp_path, many)


def test_a_mistake_in_an_included_file_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "q.xml").write_text("<Queue>\n <Name>q</Name>\n <MaxCancels>x</MaxCancels>\n</Queue>")
    said = refusal(tmp_path, "<SOW><Include>q.xml</Include></SOW>")
    assert f"{tmp_path / 'q.xml'}:3: <MaxCancels> of <Queue> \"q\": 'x' is not a whole number" in said


def test_variables_come_from_the_environment(tmp_path: Path) -> None:
    text = "<AMPSConfig><Name>${WHO}-1</Name><Group>${AMPS_CONFIG_DIRECTORY}</Group></AMPSConfig>"
    settings = load_file(file(tmp_path, text), environ={"WHO": "orders"})
    assert (settings.server.name, settings.server.group) == ("orders-1", str(tmp_path))
    assert "the environment has no variable WHO; did you mean 'WHOM'?" in refusal(tmp_path, text, WHOM="x")


def test_options_and_environment_win_over_the_file(tmp_path: Path) -> None:
    path = file(tmp_path, "<AMPSConfig><Name>one</Name></AMPSConfig>")
    settings = load_file(path, environ={"PENSTOCK_SERVER__NAME": "two"}, options={"server.data": "/d"})
    assert (settings.server.name, settings.origin("server.name")) == (
        "two",
        "environment variable PENSTOCK_SERVER__NAME",
    )
    with pytest.raises(SettingsError, match=r"^option --sync: 'never' is not one of"):
        load_file(path, options={"server.sync": "never"})


# --- RabbitMQ -------------------------------------------------------------------------------------------------------

HASH = base64.b64encode(b"salt" + sha256(b"saltpassword").digest()).decode()

DEFINITIONS: dict[str, object] = {
    "rabbit_version": "3.13.1",
    "users": [{"name": "ann", "password_hash": HASH, "tags": "administrator,red"}, {"name": "bob"}],
    "vhosts": [{"name": "/"}, {"name": "shop"}],
    "permissions": [
        {"user": "ann", "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"} for vhost in ("/", "shop")
    ],
    "policies": [
        {
            "vhost": "shop",
            "name": "cap",
            "pattern": "^to",
            "apply-to": "queues",
            "priority": 2,
            "definition": {"max-length": 5, "ha-mode": "all"},
        }
    ],
    "parameters": [
        {
            "vhost": "/",
            "component": "operator_policy",
            "name": "all",
            "value": {"pattern": ".*", "definition": {"message-ttl": 9000}, "priority": 0, "apply-to": "queues"},
        }
    ],
    "global_parameters": [{"name": "cluster_name", "value": "rabbit@x"}],
    "exchanges": [
        {"name": "events", "vhost": "shop", "type": "topic", "durable": True, "auto_delete": False, "internal": False}
    ],
    "queues": [
        {
            "name": "to-ship",
            "vhost": "shop",
            "durable": True,
            "auto_delete": False,
            "arguments": {
                "x-queue-type": "classic",
                "x-message-ttl": 60_000,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "graveyard",
                "x-lease-period": 1500,
                "x-colour": "red",
            },
        }
    ],
    "bindings": [
        {
            "source": "events",
            "vhost": "shop",
            "destination": "to-ship",
            "destination_type": "queue",
            "routing_key": "order.*",
            "arguments": {},
        }
    ],
}


def test_definitions_become_settings(tmp_path: Path) -> None:
    converted = read_foreign(file(tmp_path, json.dumps(DEFINITIONS)))
    assert converted.settings == {
        "user": [{"name": "ann", "password_hash": HASH, "tags": ["administrator"]}],
        "vhost": [{"name": "shop"}],
        "exchange": [{"name": "events", "type": "topic", "vhost": "shop"}],
        "queue": [
            {
                "name": "to-ship",
                "vhost": "shop",
                "fairness_model": "round-robin",
                "message_ttl": "1m",
                "dead_letter_exchange": "",
                "dead_letter_routing_key": "graveyard",
                "lease_period": "1500ms",
                "arguments": {
                    "x-queue-type": "classic",
                    "x-message-ttl": 60_000,
                    "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": "graveyard",
                    "x-lease-period": 1500,
                    "x-colour": "red",
                },
            }
        ],
        "policy": [
            {
                "name": "cap",
                "vhost": "shop",
                "pattern": "^to",
                "apply_to": "queues",
                "priority": 2,
                "definition": {"max-length": 5},
            }
        ],
        "operator_policy": [
            {"name": "all", "pattern": ".*", "apply_to": "queues", "definition": {"message-ttl": 9000}}
        ],
        "binding": [{"source": "events", "destination": "to-ship", "key": "order.*", "vhost": "shop"}],
    }
    assert remarks(converted) == {
        (Verdict.NO_MEANING, 'users[0] "ann"'),
        (Verdict.DIFFERS, 'users[1] "bob"'),
        (Verdict.NO_MEANING, 'policies[0] "cap" ha-mode'),
        (Verdict.NO_MEANING, 'global_parameters[0] "cluster_name"'),
        (Verdict.NO_MEANING, 'queues[0] "to-ship" x-colour'),
    }
    taken = load_file(converted.source)
    assert taken.with_origins({}) == load_text(to_toml(converted.settings)).with_origins({})


def test_a_delayed_exchange_is_taken_as_it_is(tmp_path: Path) -> None:
    delayed = {"name": "later", "type": "x-delayed-message", "arguments": {"x-delayed-type": "topic"}}
    converted = read_foreign(file(tmp_path, json.dumps({"exchanges": [{"vhost": "/", **delayed}]})))
    assert converted.settings["exchange"] == [delayed]
    assert remarks(converted) == set()
    assert load_file(converted.source).exchange[0].type == "x-delayed-message"


@pytest.mark.parametrize(("kind", "name", "value"), [("x-recent-history", "x-recent-history-length", 5),
                                                     ("x-message-deduplication", "x-cache-size", 50)])  # fmt: skip
def test_an_exchange_that_remembers_is_taken_as_it_is(tmp_path: Path, kind: str, name: str, value: int) -> None:
    exchange = {"name": "room", "type": kind, "arguments": {name: value}}
    converted = read_foreign(file(tmp_path, json.dumps({"exchanges": [{"vhost": "/", **exchange}]})))
    assert (converted.settings["exchange"], remarks(converted)) == ([exchange], set())


def test_what_rabbitmq_has_and_we_do_not_yet_is_refused_by_name(tmp_path: Path) -> None:
    queue = {"name": "q", "vhost": "/", "arguments": {"x-max-length": 5, "x-expires": 1000, "x-queue-type": "other"}}
    policy = {"vhost": "/", "name": "p", "pattern": ".*", "definition": {"max-length": 5}}
    delayed = {"name": "later", "vhost": "/", "type": "x-jms-topic"}
    right = {"user": "bob", "vhost": "/", "configure": "", "write": ".*", "read": ".*"}
    text = json.dumps({"queues": [queue], "policies": [policy], "exchanges": [delayed], "permissions": [right]})
    converted = read_foreign(file(tmp_path, text))
    assert converted.settings["queue"] == [
        {"name": "q", "fairness_model": "round-robin", "max_length": 5, "queue_expires": "1s",
         "arguments": queue["arguments"]}
    ]  # fmt: skip
    assert remarks(converted) == {
        (Verdict.DIFFERS, "permissions[0]"),
        (Verdict.REFUSED, 'queues[0] "q" x-queue-type'),
        (Verdict.REFUSED, 'exchanges[0] "later"'),
    }
    with pytest.raises(SettingsError, match=r'exchanges\[0\] "later": not done here'):
        load_file(converted.source)


def test_permissions_are_left_out_where_everybody_may_do_everything(tmp_path: Path) -> None:
    users = [{"name": name, "password_hash": HASH} for name in ("ann", "bob")]
    full = {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    told = {
        "users": users,
        "vhosts": [{"name": "/"}],
        "permissions": [{"user": "ann", **full}, {"user": "bob", **full}],
    }
    assert "permission" not in read_foreign(file(tmp_path, json.dumps(told))).settings
    told["permissions"] = [{"user": "ann", **full}, {"user": "bob", **full, "read": "^q"}]
    converted = read_foreign(file(tmp_path, json.dumps(told)))
    assert converted.settings["permission"] == [
        {"user": "ann", "configure": ".*", "write": ".*", "read": ".*"},
        {"user": "bob", "configure": ".*", "write": ".*", "read": "^q"},
    ]
    with Broker(config=converted.source) as broker:
        url = urlsplit(broker.amqp_url)
        connection = pika.BlockingConnection(pika.URLParameters(f"amqp://bob:password@{url.hostname}:{url.port}/%2F"))
        channel = connection.channel()
        for name in ("q", "other"):
            channel.queue_declare(name)
        channel.basic_get("q")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.basic_get("other")
        assert refused.value.reply_code == 403
        connection.close()


def test_topic_permissions_and_limits_of_definitions_hold(tmp_path: Path) -> None:
    all_of_it = {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    told = {
        "users": [{"name": "ann", "password_hash": HASH, "limits": {"max-connections": 1, "max-channels": -1}}],
        "vhosts": [{"name": "/"}],
        "permissions": [{"user": "ann", **all_of_it}],
        "topic_permissions": [
            {"user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^{username}[.]", "read": "^a"},
            {"user": "gone", "vhost": "/", "exchange": "amq.topic", "write": "", "read": ""},
        ],
        "parameters": [{"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 1}}],
    }
    converted = read_foreign(file(tmp_path, json.dumps(told)))
    assert remarks(converted) == {(Verdict.DIFFERS, "topic_permissions[1]")}
    assert converted.settings["topic_permission"] == [
        {"user": "ann", "exchange": "amq.topic", "write": "^{username}[.]", "read": "^a"}
    ]
    assert converted.settings["vhost"] == [{"name": "/", "max_queues": 1}]
    taken = load_file(converted.source)
    assert taken.with_origins({}) == load_text(to_toml(converted.settings)).with_origins({})
    with Broker(config=converted.source) as broker:
        url = urlsplit(broker.amqp_url)
        parameters = pika.URLParameters(f"amqp://ann:password@{url.hostname}:{url.port}/%2F")
        with pika.BlockingConnection(parameters) as connection:
            with pytest.raises(pika.exceptions.AMQPConnectionError, match=r"connection limit \(1\)"):
                pika.BlockingConnection(parameters)

            def refused(work: Callable[[Any], object], code: int, said: str) -> None:
                channel = connection.channel()
                channel.confirm_delivery()
                with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=said) as caught:
                    work(channel)
                assert caught.value.reply_code == code

            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q")
            channel.queue_bind("q", "amq.topic", "ann.#")
            channel.basic_publish("amq.topic", "ann.1", b"x")
            channel.basic_publish("amq.direct", "bob.1", b"x")  # another exchange: nothing narrows it
            refused(
                lambda one: one.basic_publish("amq.topic", "bob.1", b"x"), 403, "topic 'bob.1' of exchange 'amq.topic'"
            )
            refused(lambda one: one.queue_bind("q", "amq.topic", "bob.#"), 403, "topic 'bob.#'")
            refused(lambda one: one.queue_declare("r"), 406, r"queue limit in vhost '/' \(1\) is reached")
            assert channel.basic_get("q", auto_ack=True)[2] == b"x"


def test_a_topic_permission_narrows_a_permission() -> None:
    alone = '[[user]]\nname = "ann"\npassword = "x"\n[[topic_permission]]\nuser = "ann"\nexchange = "amq.topic"\n'
    with pytest.raises(
        SettingsError, match="there is no .*permission.* of 'ann' in vhost '/', which this would narrow"
    ):
        load_text(alone)
    with pytest.raises(SettingsError, match="write"):
        load_text(alone + 'write = "("\n[[permission]]\nuser = "ann"\n')


def test_limits_that_are_none_are_refused(tmp_path: Path) -> None:
    user = {"name": "ann", "password_hash": HASH, "limits": {"max-cheese": 1, "max-connections": "3"}}
    assert "limit max-connections '3' is no whole number" in refusal(tmp_path, json.dumps({"users": [user]}))
    user["limits"] = {"max-cheese": 1}
    converted = read_foreign(file(tmp_path, json.dumps({"users": [user]})))
    assert remarks(converted) == {(Verdict.REFUSED, 'users[0] "ann"')}


def test_users_of_definitions_log_in_and_their_clients_declare_again(tmp_path: Path) -> None:
    with Broker(config=file(tmp_path, json.dumps(DEFINITIONS))) as broker:
        address = urlsplit(broker.amqp_url)
        url = f"amqp://ann:password@{address.hostname}:{address.port}/shop"
        connection = pika.BlockingConnection(pika.URLParameters(url))
        channel = connection.channel()
        queue = cast("list[dict[str, Any]]", DEFINITIONS["queues"])[0]
        channel.queue_declare("to-ship", durable=True, arguments=queue["arguments"])
        for key in range(7):
            channel.basic_publish("events", f"order.{key}", b"x")
        assert channel.queue_declare("to-ship", passive=True).method.message_count == 5  # the policy's limit
        connection.close()
        with pytest.raises(pika.exceptions.AMQPError):
            pika.BlockingConnection(pika.URLParameters(url.replace(":password@", ":wrong@")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"queues": [}', "FILE:1: is not JSON: Expecting value"),
        ('{"queues": 5}', "FILE: queues: is not a list"),
        ('{"queues": [5]}', "FILE: queues[0]: is not an object"),
        ('{"queues": [{"vhost": "/"}]}', "FILE: queues[0]: name is missing"),
        (
            '{"queues": [{"name": "q", "durable": "yes"}]}',
            "FILE: queues[0] \"q\": durable 'yes' is neither true nor false",
        ),
        ('{"queues": [{"name": "q", "arguments": {"a": null}}]}', 'FILE: queues[0] "q": holds null'),
        ('{"queues": [{"name": "q", "arguments": {"a": NaN}}]}', 'FILE: queues[0] "q": holds nan'),
        ('{"queues": [{"name": "\\ud800"}]}', "surrogate pair"),
        ('{"queues": [{"name": "q", "x": ' + "[" * 20 + "]" * 20 + "}]}", "is nested deeper than 16"),
        ('{"queues": ' + "[" * 100_000, "FILE: is not JSON that can be read"),
        ('{"queues": ' + "1" * 5000 + "}", "FILE: is not JSON that can be read"),
    ],
)
def test_definitions_that_cannot_be_read(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


# --- Artemis --------------------------------------------------------------------------------------------------------

BROKER = """<?xml version="1.0"?>
<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>broker-1</name>
    <acceptors><acceptor name="artemis">tcp://0.0.0.0:61616</acceptor></acceptors>
    <address-settings>
      <address-setting match="ticker.#">
        <default-ring-size>1000</default-ring-size>
        <redelivery-delay>5000</redelivery-delay>
        <auto-create-queues>true</auto-create-queues>
        <dead-letter-address>DLQ</dead-letter-address>
      </address-setting>
    </address-settings>
    <addresses>
      <address name="jobs"><anycast><queue name="jobs"/></anycast></address>
      <address name="ticker.ibm">
        <multicast>
          <queue name="last-ten" ring-size="10"><durable>false</durable></queue>
          <queue name="all"><filter string="price &gt; 5"/></queue>
        </multicast>
      </address>
      <address name="audit"/>
    </addresses>
  </core>
</configuration>
"""


def test_a_broker_xml_becomes_settings(tmp_path: Path) -> None:
    converted = read_foreign(file(tmp_path, BROKER))
    assert converted.settings == {
        "server": {"name": "broker-1"},
        "topic": [{"name": "audit"}],
        "queue": [
            {"name": "jobs"},
            {"name": "last-ten", "underlying_topic": "ticker.ibm", "ring_size": 10, "durable": False},
            {"name": "all", "underlying_topic": "ticker.ibm"},
        ],
        "address": [
            {
                "pattern": "ticker.#",
                "default_ring_size": 1000,
                "redelivery_delay": "5s",
                "dead_letter_address": "DLQ",
            }
        ],
    }
    assert remarks(converted) == {
        (Verdict.NO_MEANING, "<acceptors>"),
        (Verdict.NO_MEANING, '<auto-create-queues> of <address-setting> "ticker.#"'),
        (Verdict.DIFFERS, "<core>"),
        (Verdict.REFUSED, '<filter> of <queue> "all"'),
    }
    with pytest.raises(SettingsError, match=r":19: <filter> of <queue> \"all\": not done here"):
        load_file(converted.source)


def test_two_anycast_queues_share_messages_there_and_not_here(tmp_path: Path) -> None:
    queues = '<queue name="a" max-consumers="1"/><queue name="b" enabled="true"/>'
    text = f'<core><addresses><address name="x"><anycast>{queues}</anycast></address></addresses></core>'
    assert remarks(read_foreign(file(tmp_path, text))) == {
        (Verdict.REFUSED, '<address> "x"'),
        (Verdict.DIFFERS, "<core>"),
    }


EVERYTHING = """<core xmlns="urn:activemq:core">
  <persistence-enabled>true</persistence-enabled>
  <literal-match-markers>()</literal-match-markers>
  <security-settings><security-setting match="#"/></security-settings>
  <address-settings>
    <address-setting match="activemq.management#">
      <dead-letter-address>DLQ</dead-letter-address>
      <expiry-address>ExpiryQueue</expiry-address>
      <redelivery-delay>0</redelivery-delay>
      <max-size-bytes>-1</max-size-bytes>
      <address-full-policy>PAGE</address-full-policy>
    </address-setting>
    <address-setting match="#">
      <max-delivery-attempts>10</max-delivery-attempts>
      <redelivery-delay>250</redelivery-delay>
      <redelivery-delay-multiplier>1.5</redelivery-delay-multiplier>
    </address-setting>
    <address-setting match="(a.#)"><max-delivery-attempts>3</max-delivery-attempts></address-setting>
    <address-setting match="b.#"><slow-consumer-policy>KILL</slow-consumer-policy></address-setting>
  </address-settings>
  <addresses>
    <address name="DLQ"><anycast><queue name="DLQ"/></anycast></address>
    <address name="x">
      <multicast>
        <queue name="y" exclusive="true" max-consumers="2" purge-on-no-consumers="true" group-buckets="-1"/>
        <queue name="lvq" last-value="true"/><queue name="colours" last-value="true" last-value-key="colour"/>
        <queue name="z" consumers-before-dispatch="2" delay-before-dispatch="500" group-first-key="k"/>
      </multicast>
    </address>
  </addresses>
  <queues><queue name="old"><address>jms.old</address><durable>false</durable></queue></queues>
</core>
"""


def test_all_of_a_broker_xml_that_has_an_equal_is_taken(tmp_path: Path) -> None:
    converted = read_foreign(file(tmp_path, EVERYTHING))
    assert converted.settings == {
        "queue": [
            {"name": "DLQ"},
            {"name": "y", "underlying_topic": "x", "single_active_consumer": True, "max_consumers": 2,
             "purge_on_no_consumers": True},
            {"name": "lvq", "underlying_topic": "x", "last_value_key": "/@headers/_AMQ_LVQ_NAME"},
            {"name": "colours", "underlying_topic": "x", "last_value_key": "/@headers/colour"},
            {"name": "z", "underlying_topic": "x", "consumers_before_dispatch": 2, "delay_before_dispatch": "500ms"},
            {"name": "old", "underlying_topic": "jms.old", "durable": False},
        ],
        "address": [
            {"pattern": "activemq.management#", "dead_letter_address": "DLQ", "expiry_address": "ExpiryQueue",
             "redelivery_delay": "0s", "max_size_bytes": -1, "address_full_policy": "PAGE"},
            {"pattern": "#", "max_delivery_attempts": 10, "redelivery_delay": "250ms",
             "redelivery_delay_multiplier": 1.5},
            {"pattern": "a.#", "literal": True, "max_delivery_attempts": 3},
            {"pattern": "b.#"},
        ],
    }  # fmt: skip
    assert remarks(converted) == {
        (Verdict.NO_MEANING, "<persistence-enabled>"),
        (Verdict.DIFFERS, "<security-settings>"),
        (Verdict.REFUSED, '<slow-consumer-policy> of <address-setting> "b.#"'),
        (Verdict.REFUSED, 'group-first-key of <queue> "z"'),
    }


def test_queues_of_a_broker_xml_follow_its_address_settings(tmp_path: Path) -> None:
    text = EVERYTHING.replace(' group-first-key="k"', "").replace("slow-consumer-policy>", "address-full-policy>")
    with Broker(config=file(tmp_path, text.replace("KILL", "PAGE"))) as broker:
        stats = broker.command(lambda one: one.core.queue("/", "old").settings)
    assert stats.max_deliveries == 10
    assert stats.retry == Retry(250_000, 1.5, 2_500_000, 0.0, 0)


NEUTRAL = {
    "ring-size": ("-1", "default-ring-size", "3", "ring_size"),
    "max-consumers": ("-1", "default-max-consumers", "1", "max_consumers"),
    "purge-on-no-consumers": ("false", "default-purge-on-no-consumers", "true", "purge_on_no_consumers"),
    "exclusive": ("false", "default-exclusive-queue", "true", "single_active_consumer"),
    "consumers-before-dispatch": ("0", "default-consumers-before-dispatch", "2", "consumers_before_dispatch"),
    "non-destructive": ("false", "default-non-destructive", "true", "non_destructive"),
}


@pytest.mark.parametrize("attribute", NEUTRAL)
def test_a_queue_that_says_none_of_it_is_none_whatever_its_address_says(attribute: str, tmp_path: Path) -> None:
    none, default, value, setting = NEUTRAL[attribute]
    queues = f'<queue name="plain"/><queue name="own" {attribute}="{none}"/>'
    text = (
        f"<core><address-settings><address-setting match='#'><{default}>{value}</{default}></address-setting>"
        f"</address-settings><addresses><address name='x'><multicast>{queues}</multicast></address></addresses></core>"
    )
    with Broker(config=file(tmp_path, text)) as broker:
        plain, own = (
            broker.command(lambda one, name=name: getattr(one.core.queue("/", name).settings, setting))
            for name in ("plain", "own")
        )
    assert str(plain).lower() == value
    assert str(own).lower() == none or own is None


@pytest.mark.parametrize("limit", ["max-size-bytes", "max-size-messages"])
def test_an_address_setting_without_a_limit_goes_before_a_wider_one_with_it(limit: str, tmp_path: Path) -> None:
    def setting(match: str, value: str) -> str:
        full = "<address-full-policy>FAIL</address-full-policy>"
        return f"<address-setting match='{match}'>{full}<{limit}>{value}</{limit}></address-setting>"

    queues = "<address name='a.x'><anycast><queue name='a.x'/></anycast></address>"
    text = (
        f"<core><address-settings>{setting('#', '3')}{setting('a.#', '-1')}</address-settings>"
        f"<addresses>{queues}</addresses></core>"
    )
    with Broker(config=file(tmp_path, text)) as broker:
        settings = broker.command(lambda one: one.core.queue("/", "a.x").settings)
    assert (settings.max_length, settings.max_length_bytes) == (None, None)
