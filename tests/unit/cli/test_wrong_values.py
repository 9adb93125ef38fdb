"""What somebody typed wrong ends with 2 and is told by name, value and limit, whoever found it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator

import pytest

from penstock.cli.output import write
from penstock.client import connect
from penstock.errors import InvalidArgument
from penstock.testing import Broker

Run = Callable[..., tuple[int, str, str]]
Wrong = Callable[..., str]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"queue": [{"name": "q"}], "user": [{"name": "root", "password": "r", "tags": ["administrator"]}]}
    with Broker(settings) as broker, connect(broker.flight_url.replace("guest:guest", "root:r")) as client:
        for kind in ("topic", "headers", "x-consistent-hash", "x-super-stream"):
            client.declare_exchange(f"e-{kind}", kind)
        client.add_user("ann", "secret")
        yield broker


@pytest.fixture
def url(broker: Broker) -> str:
    return broker.flight_url.replace("guest:guest", "root:r")


@pytest.fixture
def wrong(run: Run, url: str) -> Wrong:
    """What is said of a command that a wrong value ended."""

    def wrong(*words: str) -> str:
        status, out, err = run(*words, "--url", url)
        assert (status, out) == (2, ""), (out, err)
        return err

    return wrong


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("exchange declare e --type topc", "unknown exchange type 'topc'; did you mean 'topic'?"),
        ("exchange declare e --argument alternate-exchange=5", "'alternate-exchange' for exchange 'e' in vhost '/': 5"),
        ("exchange declare e --type x-delayed-message", "'x-delayed-type' for exchange 'e'"),
        ("exchange declare e --type x-consistent-hash --argument hash-header=5", "5 is not text"),
        ("exchange declare e --type x-consistent-hash --argument hash-property=body", "Unsupported property: 'body'"),
        (
            "exchange declare e --type x-modulus-hash --argument hash-header=a --argument hash-property=message_id",
            "mutually exclusive",
        ),
        ("exchange declare e --type x-recent-history --argument x-recent-history-length=0", "x-recent-history-length"),
        ("exchange declare e --type x-message-deduplication", "'x-cache-size'"),
        ("exchange declare e --type x-message-deduplication --argument x-cache-size=1000001", "1000001, and 1000000"),
        ("exchange declare e --type x-message-deduplication --argument x-cache-size=9 --argument x-cache-ttl=0", "ttl"),
        ("binding declare e-headers q --argument x-match=some", "'some'; expected one of all, any"),
        ("binding declare e-x-consistent-hash q heavy", "must be an integer: 'heavy'"),
        ("binding declare e-x-consistent-hash q 0", "must be greater than 0"),
        ("binding declare e-x-consistent-hash q 1000000000", "999999999 at most: '1000000000'"),
        ("binding declare e-x-super-stream q first", "must be an integer: 'first'"),
        ("queue declare r --set underlying_topic=^a(", "'underlying_topic' for queue 'r'"),
        ("queue declare r --set underlying_topic=^a", "'default_publish_target' for queue 'r'"),
        ("queue declare r --set dead_letter_routing_key=k", "dead_letter_routing_key of queue 'r'"),
        ("queue declare r --set queue=x", "'queue' is no setting of a queue"),
        ("queue declare r --set self=x", "'self' is no setting of a queue"),
        (
            "queue declare r --set lease_perod=1s",
            "'lease_perod' is no setting of a queue; did you mean 'lease_period'?",
        ),
        ("queue declare r --set lease_period=1s --set lease-period=2s", "lease_period is named twice"),
        (
            "queue declare r --set max_length_bytes=5",
            "a size needs a unit: write max_length_bytes=5B if bytes are meant",
        ),
        (
            "queue declare r --set retry=2s",
            "'2s' is not a table of initial, factor, max, jitter, attempts, as in { initial =",
        ),
        ("queue declare r --set lease_period=true", "lease_period of queue 'r': true is not a"),
        ("queue alter q --set queue=x", "'queue' is no setting of a queue"),
        ("queue alter q --unset queue", "'queue' is no setting of a queue"),
        ("queue alter q --set rate_limit=false", "false is no rate: write messages and a time"),
        ("queue alter q --set rate_limit=5", "5 is no rate: write messages and a time"),
        ("queue alter q --set filter=/a --unset filter", "filter is named twice"),
        ("bench publish --count 1 --set queue=x", "'queue' is no setting of a queue"),
        ("policy set p q {", "the definition '{' is not JSON: "),
        ("policy set p q [1]", "the definition [1] is not a JSON object"),
        ("queue declare r --set recovery_point=soon", "recovery_point of queue 'r'"),
        ("queue declare r --set message_type=cobol", "cobol"),
        ("queue alter q --set underlying_topic=^a(", "'underlying_topic' for queue 'q'"),
    ],
)
def test_a_wrong_value_is_no_refusal(words: str, said: str, wrong: Wrong) -> None:
    err = wrong(*words.split())
    assert said in err
    assert "PS105" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("user set-permissions ann ( b c", "configure '(' is no regular expression that RE2 reads: missing )"),
        ("user set-permissions ann a [ c", "write '[' is no regular expression"),
        ("user set-permissions ann a b (?=x)", "read '(?=x)' is no regular expression that RE2 reads: it uses look-"),
        ("token issue t --read (", "read '(' is no regular expression that RE2 reads: missing )"),
        ("token issue t --write a)|(b", "write 'a)|(b' is no regular expression"),
        (
            'operator-policy set p q {"dead-letter-exchange":"x"}',
            "policy 'p': dead-letter-exchange: an operator policy may not say it; it may say delivery-limit, expires,",
        ),
        ('operator-policy set p q {"max-lenght":1}', "may not say it; did you mean 'max-length'?"),
        ('policy set p q {"max-length":1} --priority 2147483648', "2147483648, not in -2147483647..2147483647"),
        (f'policy set p q {{"max-length":1}} --priority {10**20}', f"policy_set: priority is {10**20}, and numbers"),
        (f'policy set p q {{"max-length":{10**20}}}', f"policy_set: definition/max-length is {10**20}, and numbers"),
        ("queue show a\udc80b", "queue: name is 'a\\udc80b', which is no text in UTF-8"),
        (f"user set-limit ann max-connections {10**20}", f"limit_set: value is {10**20}, and numbers from -"),
        (f"exchange declare e --argument a={10**20}", f"arguments/a is {10**20}, and numbers from -"),
        (f"binding declare e-topic q k --argument a=-{10**20}", f"arguments/a is -{10**20}, and numbers from -"),
        ("queue pause q --until 0s", "until is 0s, which is not between 1us and 1,000 years"),
        ("queue pause q --until 0.0ms", "until is 0.0ms, which is not between 1us and 1,000 years"),
        ("queue pause q --until 2000000d", "until is 2000000d, which is not between 1us and 1,000 years"),
        ("queue pause q --until 1969-12-31T00:00:00Z", "until is 1969-12-31T00:00:00+00:00, which is not between the"),
        ("queue pause q --until=-5m", "--until '-5m' is neither a duration such as 10m nor a time such as"),
        ("queue pause q --until=", "--until '' is neither a duration"),
        ("message reschedule 5 2000000d", "when is 2000000d, which is not between 0 and 1,000 years"),
        ("message reschedule 5 soon", "WHEN 'soon' is neither a duration"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_allowed(words: str, said: str, wrong: Wrong) -> None:
    assert said in wrong(*words.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("arvo orders.avsc", "'arvo' is not one of avro, protobuf; did you mean 'avro'?"),
        ("protobuf shop.pb", "--message goes with protobuf, which needs it"),
        ("avro orders.avsc --message shop.Order", "--message goes with protobuf"),
        ("avro nowhere.avsc", "nowhere.avsc: No such file or directory"),
        ("avro x=nowhere.avsc 7=nowhere.avsc", "several schemas need ids: 7=orders-7.avsc"),
    ],
)
def test_a_message_type_that_cannot_be_made_is_told(words: str, said: str, run: Run) -> None:
    status, out, err = run("topic", "message-type", *words.split())
    assert (status, out, said in err) == (2, "", True), err


@pytest.mark.parametrize("words", ["show {}", "cancel {}", "reschedule {} 5m"])
@pytest.mark.parametrize("text", ["nope", "latest", "0|1|", "7|x|", "MOST_RECENT", "2026-01-01T00:00:00Z", "7|1|,7|2|"])
def test_a_message_is_named_by_what_a_message_can_have(words: str, text: str, wrong: Wrong) -> None:
    said = wrong("message", *words.format(text).split())
    assert f"penstock: {text!r} names no message: write its bookmark <origin>|<lsn>|, or its LSN\n" in said


def test_settling_by_a_filter_says_how_much_there_is(wrong: Wrong, run: Run, url: str) -> None:
    said = wrong("queue", "ack", "q", "--filter", "1=1")
    assert "queue q has 0 ready, 0 leased, 0 delayed: settle what matches?  Nobody is there to ask: say --yes" in said
    with connect(url) as client:
        client.publish("q", b"one")
    assert run("queue", "ack", "q", "--filter", "1=1", "--yes", "--url", url)[1] == "1 message of queue q\n"


def test_so_it_is_in_a_queue(wrong: Wrong) -> None:
    assert "'nope' names no message: write its bookmark" in wrong("queue", "explain", "q", "--message", "nope")
    assert "'EPOCH' names no message: write its bookmark <origin>|<lsn>|\n" in wrong("queue", "ack", "q", "EPOCH")


def test_a_missing_user_is_not_a_missing_vhost(run: Run, url: str) -> None:
    for words, said in (("nope a b c", "no user 'nope'"), ("ann a b c -p nope", "no vhost 'nope'")):
        status, _, err = run("user", "set-permissions", *words.split(), "--url", url)
        assert (status, f"penstock: {said}\n" in err) == (1, True), err


def test_a_tag_that_gives_no_right_is_told(run: Run, url: str) -> None:
    """It is kept, as RabbitMQ keeps it: tools have tags of their own."""
    for words in (("add", "eve", "secret", "--tag", "administrater"), ("set-tags", "eve", "administrater")):
        status, _, err = run("user", *words, "--url", url)
        said = "the tag 'administrater' gives no right; did you mean 'administrator'?\n"
        assert (status, err) == (0, said)
    assert run("user", "set-tags", "eve", "blue", "monitoring", "--url", url)[2] == (
        "the tag 'blue' gives no right: those that do are management, policymaker, monitoring, administrator\n"
    )


@pytest.mark.parametrize(
    ("kind", "body"),
    [("JSON", '{"x":9'), ("JSON", "abc"), ("JSON", ""), ("JSON", '{"x": NaN}'), ("XML", "<x>"), ("NVFIX", "x")],
)
@pytest.mark.parametrize("backend", ["python", "arrow"])
def test_a_body_that_is_none_of_its_type_is_no_null(kind: str, body: str, backend: str, run: Run) -> None:
    expression = "/x" if kind == "JSON" else f"[{kind.lower()}] /x"
    status, out, err = run("expr", expression, "--message", body, "--backend", backend)
    assert (status, out) == (2, "")
    assert f"penstock: --message {body!r} is no {kind}: " in err


@pytest.mark.parametrize(
    ("expression", "body", "value"),
    [
        ("[xml] /order/@id = 7", '<order id="7"/>', "TRUE"),
        ("MESSAGE_SIZE()", "ab", "2"),
        ("[binary] /x", "ab", "NULL"),
        ("/x", "[1]", "NULL"),
    ],
)
def test_a_body_of_its_type_is_read(expression: str, body: str, value: str, run: Run) -> None:
    assert run("expr", expression, "--message", body) == (0, f"{value}\n", "")


def test_a_line_that_is_no_json_is_told_by_its_number(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"x":1}\n\n{"x":\n')))
    status, out, err = run("expr", "/x", "-m", "-")
    assert (status, out) == (2, "")
    assert "line 3 of standard input, '{\"x\":', is no JSON: " in err


@pytest.mark.parametrize(
    "words", ["check {}", "log ls --data {}", "restore {} x", "convert {}", "doctor {}", "expr {}"]
)
@pytest.mark.parametrize("name", ["a\udc80b", "x" * 5000])
def test_a_name_that_cannot_be_is_told_to_people_and_to_programs(words: str, name: str, run: Run) -> None:
    given = [word.format(name) for word in words.split()]
    if name.isascii():  # what is printed here takes no other characters, as a terminal does
        status, out, err = run(*given)
        assert (status, out) == (2, "")
        assert err.startswith("penstock: ")
    status, out, err = run(*given, "--json")
    assert (status, out) == (2, "")
    assert set(json.loads(err)["error"]) >= {"code", "message"}


def test_a_password_that_is_no_text_is_told(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"secret\xff\n"), encoding="utf-8"))
    assert "the password from standard input is no text: " in wrong("user", "add", "dora")


def test_a_name_that_is_no_text_is_printed_as_it_was(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with open(1, "w", encoding="utf-8", closefd=False) as out, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        write("a\udc80b: good")
    assert capfdbinary.readouterr().out == b"a\x80b: good\n"


def test_spark_is_not_started_for_a_queue_that_is_not_there(run: Run, url: str) -> None:
    status, _, err = run("queue", "redrive", "nowhere", "--spark", "--url", url)
    assert (status, "no queue 'nowhere'" in err) == (1, True)
    status, _, err = run("queue", "redrive", "q", "--spark", "--filter", "/a >", "--url", url)
    assert (status, "the expression ends where" in err) == (2, True)


def test_nothing_is_not_all_on_disk(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for given in (b"", b"\n\n"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        assert run("publish", "q", "--url", url) == (
            0,
            "nothing was published to q: standard input has no message\n",
            "",
        )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    status, out, _ = run("publish", "q", "--json", "--url", url)
    assert (status, json.loads(out)["published"]) == (0, 0)


@pytest.mark.parametrize(
    "words", ["queue purge q", "queue delete q", "user delete ann", "sow topic --delete --filter 1=1"]
)
def test_who_asks_where_nobody_answers_is_told_to_say_yes(words: str, run: Run, url: str, broker: Broker) -> None:
    with connect(url) as client:
        client.declare_topic("topic", key=["/id"])
    status, _, err = run(*words.split(), "--url", url)
    assert (status, "say --yes" in err, "Use a value" in err) == (2, True, False), err
    told = json.loads(run(*words.split(), "--url", url, "--json")[2].splitlines()[-1])["error"]
    assert (told["code"], told["to_do"]) == ("PS105", "Say --yes, or call it where somebody can answer.")


def test_an_action_without_fields_names_none(url: str) -> None:
    with connect(url) as client, pytest.raises(InvalidArgument, match="health: unknown field 'x'; it takes none$"):
        client.action("health", x=1)
