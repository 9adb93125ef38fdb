"""The settings file: defaults, units, overrides, and what each mistake says."""

from __future__ import annotations

import re
import runpy
import time
from collections import Counter
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from penstock.config.impossible import OWN, impossible
from penstock.config.load import by_default, chosen, in_force, load_file, load_mapping, load_text
from penstock.config.mistakes import LATER_SECTIONS
from penstock.config.sections import Address
from penstock.config.settings import Settings
from penstock.errors import SettingsError
from penstock.log import checkpoints, mending, name_index, segment
from penstock.records.event_actions import Action, OnExpire, PublishStep
from penstock.records.queue_settings import Retry
from penstock.server import scratch_pages, sql
from penstock.server.flight import stage_files

ORIGINS = """
[server]
name = "one"
[[queue]]
name = "a"
max_cancels = 3
"""

FULL = """
[server]
name = "one"
sync = "interval"
memory = "64MiB"
[listen]
amqp = "[::1]:0"
http = "off"
[log]
segment = "1MiB"
retention = { age = "7d", bytes = "50GB" }
[[user]]
name = "ann"
password = "secret"
tags = ["administrator"]
[[vhost]]
name = "shop"
[[exchange]]
name = "events"
type = "topic"
[[topic]]
name = "revenue"
[[queue]]
name = "to-ship"
vhost = "shop"
underlying_topic = "^orders\\\\."
default_publish_target = "orders.new"
filter = "/status = 'paid'"
lease_period = "30s"
retry = { initial = "1s", factor = 2.0, max = "5m", jitter = 0.2, attempts = 8 }
[[binding]]
source = "events"
destination = "to-ship"
key = "order.*"
[[action]]
on = { queue = "to-ship", event = "expire", reason = ["max_deliveries"] }
do = { publish = { topic = "graveyard", data = '{"why": "{{AMPS_REASON}}"}' } }
[[pipeline]]
name = "revenue"
from = { queue = "to-ship", vhost = "shop" }
sql = "SELECT region, sum(total) AS total FROM input GROUP BY region"
to = [{ topic = "revenue" }, { table = "out/revenue" }]
trigger = "5s"
expect = [{ that = "total > 0", topic = "bad" }]
"""


def refusal(text: str, **given: dict[str, str]) -> str:
    with pytest.raises(SettingsError) as caught:
        load_text(text, **given)
    return str(caught.value)


def test_an_empty_file_gives_the_defaults() -> None:
    settings = load_text("")
    assert settings == Settings()
    assert settings.server.sync == "commit"
    assert settings.listen.amqp == Address("127.0.0.1", 5672)
    assert settings.vhosts == ("/",)
    [guest] = settings.users
    assert (guest.name, guest.loopback_only) == ("guest", True)


def test_everything_that_may_be_said() -> None:
    settings = load_text(FULL)
    assert settings.server.memory == 64 * 1024 * 1024
    assert (settings.listen.amqp, settings.listen.http) == (Address("::1", 0), None)
    assert str(settings.listen.amqp) == "[::1]:0"
    assert settings.log.retention.age == 7 * 86_400_000_000
    assert settings.log.retention.bytes == 50 * 10**9
    assert settings.vhosts == ("/", "shop")
    [queue] = settings.queue
    assert queue.settings.lease_period == 30_000_000
    assert queue.settings.retry == Retry(attempts=8)
    assert settings.actions == (
        Action(
            "action 1",
            (OnExpire("to-ship", ("max_deliveries",)),),
            (PublishStep("graveyard", '{"why": "{{AMPS_REASON}}"}'),),
        ),
    )
    [pipeline] = settings.pipeline
    assert pipeline.source["input"].reads == "queue"
    assert [target.topic or target.table for target in pipeline.to] == ["revenue", "out/revenue"]
    assert "secret" not in repr(settings)


def test_an_address_that_is_off_is_told_as_the_file_writes_it() -> None:
    told = {name: value for name, value, _ in in_force(load_text('[listen]\namqp = "off"'))}
    assert [told[f"listen.{door}"] for door in ("amqp", "amqps", "http")] == ["off", "off", "127.0.0.1:15672"]


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().server.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[server]\nsync = "comit"', "settings:2: [server] sync: 'comit' is not one of 'commit', 'interval' or 'off'"),
        ('[server]\nsync = "comit"', "; did you mean 'commit'?"),
        ("[server]\nmemory = 512", "settings:2: [server] memory: 512 needs a unit: write '512B' if that is meant"),
        ("[server]\nmemory = -1", "settings:2: [server] memory: -1 is not text with a unit"),
        ("[log]\nack_sync = inf", "settings:2: [log] ack_sync: inf is not text with a unit"),
        ("[server]\ndoors = []", "settings:2: [server] doors: must be 'auto' or a valid integer, not []"),
        ("[server]\ndoors = { a = 1 }", "[server] doors: must be 'auto' or a valid integer, not { a = 1 }"),
        (
            "[[entitlement]]\nread = ['a']",
            "settings:2: [[entitlement]] number 1 read: must be a valid boolean or a valid string, not ['a']",
        ),
        (
            '[cluster]\nregistry = "manual"\nsecret = "0123456789abcdef"\nmembers = ["a:1", "127.0.0.1:8817"]',
            "[cluster]: members has this server's own address, '127.0.0.1:8817': it names the others",
        ),
        ("[spark]\nclass_archive = 0", "settings:2: [spark] class_archive: must be a valid boolean, not 0"),
        ('[server]\ndata = "a\\u0000b"', "settings:2: [server] data: 'a\\x00b' is no name of a file: it has a zero"),
        ('[tls]\nca = "a\\u0000b"', "settings:2: [tls] ca: 'a\\x00b' is no name of a file: it has a zero"),
        ('[log]\narchive = { folder = "\\u0000" }', "[log] archive.folder: '\\x00' is no name of a file"),
        ('[[user]]\nname = "u"\npassword_file = ""', 'settings:3: [[user]] "u" password_file: is empty'),
        ('[[user]]\nname = "u"\npassword = ""', "the password is empty, and nobody logs in with one that is"),
        ('[server]\nmemory = "1MiB"', "settings:2: [server] memory: must be at least 8 MiB, not 1 MiB"),
        ("[server]\nnmae = 1", "settings:2: [server] nmae: unknown key; did you mean 'name'?"),
        ("[sever]\nname = 1", "settings:1: [sever]: unknown section; did you mean 'server'?"),
        ("server = 3", "[server]: 3 is not a table"),
        ("[queue]\nname = 'q'", "settings:1: [queue]: is a list of tables: write [[queue]]"),
        ('[listen]\namqp = "5672"', "settings:2: [listen] amqp: '5672' is not an address"),
        (
            '[[queue]]\nname = "q"\narguments = { "x-max-length" = 3 }',
            '"q" arguments.x-max-length: declares of clients are compared with it, and it does nothing: write max_',
        ),
        (
            '[[queue]]\nname = "q"\narguments = { "x-message-ttl" = "five" }',
            "invalid arg 'x-message-ttl' for queue 'q'",
        ),
        ("[listen]\namqp = 5672", "settings:2: [listen] amqp: 5672 is not an address: write host:port"),
        ("[server]\nmemory = { a = [true] }", "[server] memory: { a = [true] } is not text with a unit"),
        ("[log]\nack_sync = 2026-01-02T03:04:05Z", "ack_sync: 2026-01-02T03:04:05+00:00 is not text with a unit"),
        ("[server]\nsync = 2026-01-02", "[server] sync: 2026-01-02 is not one of 'commit'"),
        ("[server]\nname = true", "[server] name: must be a valid string, not true"),
        ('[[queue]]\nname = "q"\nlease_period = 07:30:00', "lease_period: 07:30:00 is not a duration with a unit"),
        ('[[queue]]\nname = "q"\nretry = true', "retry: true is not a table of initial"),
        ('[[queue]]\nname = "q"\nleasing = "a\\\\b"', "leasing: 'a\\b' is not one of sublet"),
        ('[[address]]\npattern = "a"\nexpiry_delay = true', "expiry_delay: true is not a duration with a unit"),
        ('[[policy]]\nname = "p"\npattern = "a"\ndefinition = { max-length = true }', "max-length: true is not a"),
        (
            '[listen]\namqp = "off"\nhttp = "off"\nflight = "off"',
            "settings:1: [listen]: every door is off: give one of amqp, http, flight, amqps, https, flight_tls an ",
        ),
        ("[listen]\nhttp = false", "settings:2: [listen] http: false is not an address: write host:port"),
        (
            '[amqp]\nheartbeat = "500ms"',
            "heartbeat: must be whole seconds, 65535 at most, or 0s for none, not 500ms",
        ),
        ('[amqp]\nheartbeat = "1d"', "heartbeat: must be whole seconds, 65535 at most, or 0s for none, not 1d"),
        ('[before_login]\ntime = "1ms"', "[before_login] time: must be at least 100ms, not 1ms"),
        ('[before_login]\ntime = "2h"', "[before_login] time: must be at most 1h, not 2h"),
        ('[log]\nack_sync = "0s"', "[log] ack_sync: must be more than 0s, not 0s"),
        ('[log]\narchive = { folder = "." }', "[log] archive.folder: '.' is the data folder itself"),
        (
            '[log]\narchive = { folder = "log/a" }',
            "[log] archive.folder: 'log/a' is in 'log', a folder of the server",
        ),
        (
            '[server]\ndata = "/a"\n[log]\narchive = { folder = "/a/" }',
            "'/a/' is the data folder itself",
        ),
        ('[listen]\namqp = "localhost:99999"', "is not an address: port 99999 is not in 0..65535"),
        ('[listen]\namqp = "::1:5672"', "write an IPv6 host in brackets"),
        ('[listen]\namqp = "a..b:5672"', "settings:2: [listen] amqp: 'a..b:5672' is not an address: 'a..b' is no host"),
        ('[listen]\nhttp = "[[::1]]:1"', "[listen] http: '[[::1]]:1' is not an address: '[::1]' is no host"),
        (f'[listen]\nflight = "{"x" * 64}:1"', f"{'x' * 64}' is no host"),
        ('[listen]\namqp = "a\\u0000:1"', "'a\\x00' is no host"),
        *(
            (
                f'[[link]]\nname = "b"\nto = ["penstock://u:s3cret@{host}"]',
                f"\"b\" to: 'penstock://u:***@{host}' ",
            )
            for host in ("[::1", "℀.com", "a..b", "[::1],[::2]")
        ),
        *(
            (f'[spark]\nurl = "penstock://u:s3cret@{host}:1"', f"url: 'penstock://u:***@{host}:1' is no")
            for host in ("[::1", "℀.com", "a..b")
        ),
        ('[spark]\nopenlineage = "http://u:s3cret@[::1"', "openlineage: 'http://u:***@[::1' is no "),
        ('[spark]\nopenlineage = "http://h:x"', "openlineage: 'http://h:x' is no place for events: write http://"),
        ('[spark]\nopenlineage = "http://"', "openlineage: 'http://' is no place for events: write http://"),
        ('[listen]\namqps = "127.0.0.1:5671"', "settings:2: [listen] amqps: needs the certificate and key of [tls]"),
        ('[tls]\nkey = "k"', "[tls]: key is there and certificate is missing"),
        ('[tls]\nverify = "peer"', '[tls]: verify = "peer" needs ca'),
        ("[tls]\nfail_if_no_peer_cert = true", '[tls]: fail_if_no_peer_cert needs verify = "peer"'),
        ('[tls]\ncert_login_from = "common_name"', '[tls]: cert_login_from needs verify = "peer"'),
        ('[tls]\nmin_version = "1.1"', "[tls] min_version: '1.1' is not one of '1.2' or '1.3'"),
        ('[tls]\ncertficate = "c"', "[tls] certficate: unknown key; did you mean 'certificate'?"),
        (
            '[listen]\nflight_tls = "a:1"\n[tls]\nmin_version = "1.3"\ncertificate = "c"\nkey = "k"',
            "[tls] min_version: '1.3' does not go with listen.flight_tls",
        ),
        ('[listen]\namqp = "a:1"\nhttp = "a:1"', "amqp and http cannot both listen on a:1"),
        ('[log]\nretention = { age = "7 days" }', "settings:2: [log] retention.age: duration '7 days'"),
        ('[log]\nretention = "never"', "[log] retention: 'never' is no retention: give \"forever\", or a table"),
        ("[log]\nretention = { share = 2 }", "[log] retention.share: must be less than or equal to 1, not 2"),
        ("[log]\narchive = { retention = { share = 0.5 } }", "settings:2: [log] archive.retention.share: unknown key"),
        ("[log]\n[log.retention]\nbytes = 1", "settings:3: [log] retention.bytes: 1 needs a unit"),
        ('[[topic]]\nname = "t"\nschema = "x"', "[[topic]] \"t\": schema: column 'x' has no type"),
        ("[[queue]]\nlease_period = '1s'", "settings:1: [[queue]] number 1 name: is missing"),
        ('[[queue]]\nname = "q"\nlease_period = 30', "30 is not a duration with a unit: write '30s'"),
        (
            '[[queue]]\nname = "q"\nmessage_type = "avro"',
            "settings:3: [[queue]] \"q\" message_type: 'avro' needs a schema: message_type = { avro",
        ),
        ('[[queue]]\nname = "q"\nunderlying_topic = "a("', "'a(' is no RE2 pattern"),
        (f'[[queue]]\nname = "q"\nunderlying_topic = "{"a." * 501}*"', "it has 1003 bytes, at most 1000 are allowed"),
        ('[[queue]]\nname = "q"\nunderlying_topic = "^a"\ndefault_publish_target = "b"', "'b' is not among the topics"),
        ('[[queue]]\nname = "q"\n[[queue]]\nname = "q"', "settings:4: [[queue]] \"q\" name: 'q' is there twice"),
        ('[[queue]]\nname = "q"\nvhost = "shop"', "settings:3: [[queue]] \"q\" vhost: there is no [[vhost]] 'shop'"),
        ('[[queue]]\nname = "q"\nsemantics = "at-most-once"\nfairness_model = "fast"', "'fast' needs at-least-once"),
        ('[[queue]]\nname = "q"\ndead_letter_routing_key = "k"', "needs dead_letter_exchange beside it"),
        (
            '[[action]]\non = { queue = "q", event = "ack" }\ndo = { publish = { topic = "t" } }',
            "settings:2: [[action]] number 1 on.event: 'ack' is not one of 'expire', 'delete', 'publish', 'deliver'",
        ),
        ('[[user]]\nname = "u"', "either a password or a password_file"),
        ('[[pipeline]]\nname = "p"\nfrom = { queue = "q" }\nto = [{ topic = "t" }]', "sql or python is missing"),
        (
            '[[pipeline]]\nname = "p"\nfrom = { queue = "q", mode = "log" }\nsql = "s"\nto = [{ topic = "t" }]',
            "mode 'log' reads a topic",
        ),
        (
            '[[pipeline]]\nname = "p"\nfrom = { queue = "q", filter = "/a = 1" }\nsql = "s"\nto = [{ topic = "t" }]',
            "the queue's own filter decides",
        ),
        (
            '[[pipeline]]\nname = "p"\nfrom = { queue = "q", exchange = "e" }\nsql = "s"\nto = [{ topic = "t" }]',
            "goes with a topic",
        ),
        (
            (
                '[[pipeline]]\nname = "p"\nsql = "s"\nto = [{ topic = "t" }]\n[pipeline.inputs.a]\ntopic = "t"\n'
                '[pipeline.inputs.b]\ntable = "b.csv"\nmax_rows = 5'
            ),
            "max_rows, min_rows and rescued are of queues and topics",
        ),
        (
            (
                '[[pipeline]]\nname = "p"\nsql = "s"\nto = [{ topic = "t" }]\n[pipeline.inputs.a]\ntopic = "t"\n'
                '[pipeline.inputs.b]\nlog = true\nfilter = "/a = 1"'
            ),
            "the log itself have no filter of the server",
        ),
        ('[[pipeline]]\nname = "p"\nfrom = {}\nsql = "s"\nto = []', "an input is either a queue or a topic"),
        (
            '[[pipeline]]\nname = "../p"\nfrom = { topic = "q" }\nsql = "s"\nto = [{ topic = "t" }]',
            "'../p' is not a name of letters, digits, _, . and -",
        ),
    ],
)
def test_a_mistake_names_its_place_and_the_way_out(text: str, message: str) -> None:
    told = refusal(text)
    assert any(part in told for part in message.split("|"))


@pytest.mark.parametrize(
    "text",
    [
        '[cluster]\nregistry = "manual"\nsecret = 12345678',
        '[[user]]\nname = "u"\npassword = 12345678',
        '[[user]]\nname = "u"\npassword_hash = 12345678',
        '[[link]]\nname = "b"\nto = ["penstock://b"]\ntopic = [{ pattern = "t" }]\npassword = 12345678',
    ],
)
def test_a_secret_that_is_no_text_is_not_told_to_who_reads_the_mistake(text: str) -> None:
    told = refusal(text)
    assert told.endswith(": must be a valid string")
    assert "12345678" not in told


@pytest.mark.parametrize("to", ["amqp://u:12345678@b", "penstock://u:12345678@b/x", "penstock://u:12345678@b:99999"])
def test_the_password_of_a_wrong_address_is_not_told_to_who_reads_the_mistake(to: str) -> None:
    told = refusal(f'[[link]]\nname = "b"\nto = ["{to}"]\ntopic = [{{ pattern = "t" }}]')
    assert to.replace("12345678", "***") in told
    assert "12345678" not in told


@pytest.mark.parametrize("section", sorted(LATER_SECTIONS))
def test_sections_of_later_versions_are_refused(section: str) -> None:
    assert f"[{section}]: the section is not supported in this version" in refusal(f"[[{section}]]\nname = 'x'")


def test_all_mistakes_are_told_at_once() -> None:
    told = refusal("[server]\nsync = 'x'\n[log]\nsegmet = '1MiB'\n[[queue]]\nname = 'q'\nleasing = 3\nfilter = 4")
    assert len(told.splitlines()) == 4


def test_the_environment_wins_over_the_file_and_options_over_both() -> None:
    environ = {
        "PENSTOCK_SERVER__NAME": "123",
        "PENSTOCK_LOG__RETENTION__AGE": "2d",
        "PENSTOCK_AMQP__CHANNEL_MAX": "12",
        "PENSTOCK_LOG__RETENTION__SHARE": "0.25",
        "PENSTOCK_URL": "not a setting",
        "PATH": "/bin",
    }
    settings = load_text(
        '[server]\nname = "file"\nsync = "off"', source="p.toml", environ=environ, options={"server.sync": "commit"}
    )
    assert settings.server.name == "123"
    assert settings.server.sync == "commit"
    assert settings.amqp.channel_max == 12
    assert settings.origin("server.name") == "environment variable PENSTOCK_SERVER__NAME"
    assert settings.origin("server.sync") == "option --sync"
    assert settings.origin("log.retention.age") == "environment variable PENSTOCK_LOG__RETENTION__AGE"
    assert settings.log.retention.share == 0.25
    assert settings.origin("server.memory") == "default"


def test_the_environment_sets_a_section_that_may_be_absent() -> None:
    """Members of a cluster have one file, and differ by their environment."""
    environ = {"PENSTOCK_CLUSTER__ADVERTISE": "node-1:8817", "PENSTOCK_CLUSTER__SECRET": "not known to strangers"}
    settings = load_text('[cluster]\nregistry = "file:///r"', source="p.toml", environ=environ)
    assert settings.cluster is not None
    assert settings.cluster.advertise == "node-1:8817"
    assert settings.cluster.secret.get_secret_value() == "not known to strangers"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PENSTOCK_SERVER__SYNK", "off", "did you mean 'PENSTOCK_SERVER__SYNC'?"),
        ("PENSTOCK_QUEUE__NAME", "q", "overrides no single setting: no section 'queue' has one; there is amqp, "),
        ("PENSTOCK_NOPE__X", "1", "overrides no single setting: no section 'nope' has one; there is amqp, "),
        ("PENSTOCK_LGO__SYNC", "1", "no section 'lgo' has one; did you mean 'log'?"),
        ("PENSTOCK_LOG__NOPE", "1", "overrides no single setting; [log] has "),
        ("PENSTOCK_LOG__RETENTION__AEG", "1", "did you mean 'PENSTOCK_LOG__RETENTION__AGE'?"),
        ("PENSTOCK_SERVER__SYNC", "x", "environment variable PENSTOCK_SERVER__SYNC: 'x' is not one of"),
        (
            "PENSTOCK_AMQP__CHANNEL_MAX",
            "many",
            "environment variable PENSTOCK_AMQP__CHANNEL_MAX: must be a valid integer",
        ),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, message: str) -> None:
    assert message in refusal("", environ={variable: value})


def test_a_mapping_is_read_and_left_alone() -> None:
    data: dict[str, object] = {"queue": [{"name": "q", "lease_period": "30s", "max_cancels": 2}]}
    settings = load_mapping(data)
    assert settings.queue[0].settings.max_cancels == 2
    assert data == {"queue": [{"name": "q", "lease_period": "30s", "max_cancels": 2}]}


@pytest.mark.parametrize("data", [{"queue": [3]}, {"queue": {"name": "q"}}, {"server": []}, {"topic": "x"}])
def test_wrong_shapes_are_sentences(data: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="is not a table|is a list of tables"):
        load_mapping(data)


@pytest.mark.parametrize(
    "text",
    [
        '[[queue]]\r\nname = "q"\r\n',
        '{"queues": [{"name": "q", "vhost": "/", "durable": true, "arguments": {}}]}\r\n',
        (
            '<?xml version="1.0"?>\r\n<configuration><core><addresses><address name="a"><anycast>\r\n<queue name="q"/>'
            "</anycast></address></addresses></core></configuration>"
        ),
    ],
)
def test_a_file_of_windows_is_read_as_any_other(tmp_path: Path, text: str) -> None:
    (tmp_path / "one").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [queue.name for queue in load_file(tmp_path / "one").queue] == ["q"]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        load_file(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("[server\n")
    with pytest.raises(SettingsError, match=r"bad\.toml: is no TOML: .*line 1"):
        load_file(tmp_path / "bad.toml")
    for text in ("[1, 2]", "null", '"text"', "7"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(
            SettingsError, match=r"bad\.json: is JSON, but no object of RabbitMQ's definitions, and no TOML"
        ):
            load_file(tmp_path / "bad.json")
    (tmp_path / "latin.toml").write_bytes(b'[server]\nname = "\xe9"\n')
    with pytest.raises(SettingsError, match="is not UTF-8 text"):
        load_file(tmp_path / "latin.toml")


def test_every_key_has_a_sentence() -> None:
    sentences = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "settings_page.py"))["sentences"]

    def check(model: type[BaseModel]) -> None:
        for name, field in model.model_fields.items():
            assert sentences(model).get(name) or name == "settings", f"{model.__name__}.{name}"
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                check(field.annotation)

    check(Settings)


def test_values_know_their_file_and_line() -> None:
    text = ORIGINS + '[log.retention]\n\nage = "3d"\n[[queue]]\nname = "b"\nretry = { attempts = 3 }\n'
    settings = load_text(text, source="penstock.toml")
    assert settings.origin("server.name") == "penstock.toml:3"
    assert settings.origin("queue.0.max_cancels") == "penstock.toml:6"
    assert settings.origin("queue.0.filter") == "default"
    assert settings.origin("log.retention.age") == "penstock.toml:9"
    assert settings.origin("queue.1.name") == "penstock.toml:11"
    assert settings.origin("queue.1.retry.attempts") == "penstock.toml:12"
    assert load_mapping({"server": {"name": "n"}}, source="given").origin("server.name") == "given"


def test_every_setting_in_force_is_told_with_its_origin_and_no_secret() -> None:
    text = ORIGINS + '[[user]]\nname = "ann"\npassword = "not to be seen"\n'
    text += '[cluster]\nregistry = "manual"\nsecret = "not to be seen, either"\n'
    settings = load_text(text, source="p.toml", options={"server.memory": "1GiB"})
    told = {name: (value, origin) for name, value, origin in in_force(settings)}
    assert told["server.name"] == ("one", "p.toml:3")
    assert told["server.memory"] == ("1 GiB", "option --memory")
    assert told["listen.amqp"][1] == told["amqp.heartbeat"][1] == told["log.retention.age"][1] == "default"
    assert told['queue "a" max_cancels'] == ("3", "p.toml:6")
    assert told['user "ann" password'] == ("**********", "p.toml:9")
    assert told["cluster.secret"] == ("**********", "p.toml:12")
    assert not any("not to be seen" in value for value, _ in told.values())
    assert [name for name, _, _ in chosen(settings)] == [name for name in told if told[name][1] != "default"]
    usual = by_default(settings)
    assert usual["log"].startswith("segment = 256 MiB, retention.age = none, retention.bytes = none")
    assert usual['user "ann"'].startswith("password_file = none, ")
    assert usual["cluster"].startswith("name = none, members = none, listen = 127.0.0.1:8817")
    of_each = [text.count(" = ") for text in usual.values()]
    assert sum(of_each) + len(chosen(settings)) == len(told)


@pytest.mark.parametrize(
    ("text", "age", "size", "share"),
    [
        ("", None, None, None),
        ('[log]\nretention = "forever"', None, None, 1),
        ("[log]\nretention = { share = 1 }", None, None, 1),
        ('[log]\nretention = { share = 0.3, bytes = "1MiB" }', None, 1 << 20, 0.3),
    ],
)
def test_retention_says_all_of_it_or_nothing(text: str, age: int | None, size: int | None, share: float | None) -> None:
    found = load_text(text).log.retention
    assert (found.age, found.bytes, found.share) == (age, size, share)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 3000 + "]" * 3000, "settings: tables and lists are nested deeper than 64"),
        ("a = " + "[" * 70 + "]" * 70, "settings: tables and lists are nested deeper than 64"),
        ("a = " + "{a=" * 3000 + "1" + "}" * 3000, "settings: tables and lists are nested deeper than 64"),
        ("\n" + ".".join(["a"] * 70) + "=1", "settings:2: a key has more than 64 names with dots between them"),
        ("a." * 100_000, "settings:1: a key has more than 64 names"),
        (f"[{' . '.join(['a', chr(34) + 'b c' + chr(34)] * 40)}]", "settings:1: a key has more than 64 names"),
        ("a = " + "9" * 5000, "settings: is no TOML: Exceeds the limit (4300 digits)"),
        ("[server]\n" + "".join(f"k{number}z = 1\n" for number in range(130)), "\nand 30 more mistakes"),
    ],
    ids=["lists", "70 lists", "inline tables", "a key", "a key without an end", "a table", "a number", "mistakes"],
)
def test_a_file_that_nobody_wrote_by_hand_is_refused_with_a_sentence(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_text(text)
    assert message in str(error.value)
    assert str(error.value).count("\n") <= 100


def test_what_cannot_be_together_is_found_at_once_among_very_many() -> None:
    """Each member is looked at once, and a name that may have been meant is looked for when the mistake is told."""
    count = 6_000
    view = {"select": "COUNT(/id) AS /n"}
    work = {"from": {"queue": "q"}, "sql": "SELECT 1", "to": [{"topic": "t"}]}
    settings = Settings.model_validate(
        {
            "user": [{"name": f"user-{n}", "password": "x"} for n in range(count)],
            "vhost": [{"name": f"vhost-{n}"} for n in range(count)],
            "permission": [{"user": f"usr-{n}", "vhost": f"vhst-{n}"} for n in range(count)],
            "topic": [{"name": f"topic-{n // 2}"} for n in range(count)],
            "view": [{"name": f"view-{n}", "source": f"view-{n + 1}", **view} for n in range(count)],
            "pipeline": [{"name": f"pipe-{n}.backfill.1", **work} for n in range(count)],
        }
    )
    began = time.process_time()
    found = list(impossible(settings))
    assert time.process_time() - began < 1  # 0.1 s; looking at each pair takes a minute
    texts = Counter(re.sub(r"\d+", "N", problem.text) for problem in found)
    assert texts == {
        "'/topic-N' is there twice": count // 2,
        "there is no [[user]] 'usr-N'": count,
        "there is no [[vhost]] 'vhst-N'": count,
        "'view-N' is defined after this one; it must come first": count - 1,
    }


@pytest.mark.parametrize(("others", "hint"), [(100, "; did you mean 'shop-7'?"), (2_000, "")])
def test_a_name_that_was_meant_is_looked_for_among_so_many(others: int, hint: str) -> None:
    vhosts = "".join(f"[[vhost]]\nname = 'shop-{n}'\n" for n in range(others))
    with pytest.raises(SettingsError) as error:
        load_text(f"{vhosts}[[queue]]\nname = 'q'\nvhost = 'shop7'\n")
    assert str(error.value).endswith(f"there is no [[vhost]] 'shop7'{hint}")


def test_no_archive_lies_in_a_folder_that_the_server_makes() -> None:
    """Each room has a name for its own; whoever adds one to the data folder finds it here."""
    rooms = {
        mending.CUT, mending.CUTTING, name_index.FOLDER, segment.FOLDER, checkpoints.FOLDER, sql.FOLDER,
        stage_files.FOLDER, scratch_pages.FOLDER, "spark",
    }  # fmt: skip
    assert set(OWN) == rooms
    for room in rooms:
        with pytest.raises(SettingsError, match="a folder of the server"):
            load_text(f'[log]\narchive = {{ folder = "{room}/a" }}')
