"""What `--json` prints: one document, or an object on a line for each message, where there are none, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from penstock.client import connect
from penstock.testing import Broker

Run = Callable[..., tuple[int, str, str]]

LINES = (
    "queue peek q", "consume q --peek", "sow people", "replay people", "replay q",
    "replay people --count 0", "log show --from 1000000000000",
)  # fmt: skip
LISTS = (
    "topic list", "queue list", "connection list", "exchange list", "binding list", "user list",
    "user list-permissions",
    "user list-limits", "vhost list", "vhost list-limits", "policy list", "operator-policy list", "stream list",
    "pipeline list", "pipeline status", "token list", "link status", 'query SELECT|*|FROM|"q"',
)  # fmt: skip
FACTS = (
    "queue show q", "queue show q --details", "queue explain q", "queue pause q --until 1m", "queue resume q",
    "queue purge q --yes", "queue redrive q --yes", "queue move q --to r --yes", "topic show people", "drain --undo",
    "queue alter q --set max_length=5", "queue declare q2", "queue delete q2 --yes", "expr 1", "version", "top --once",
    "log ls", 'policy set p q {"max-length":5}', "policy delete p --yes",
)  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    queues = [{"name": "q"}, {"name": "r"}]
    people = [{"name": "people", "key": ["/id"]}]
    root = [{"name": "root", "password": "r", "tags": ["administrator"]}]
    with Broker({"queue": queues, "topic": people, "user": root}) as broker:
        yield broker


@pytest.fixture
def told(broker: Broker, run: Run) -> Callable[..., str]:
    def told(words: str) -> str:
        url = broker.flight_url.replace("guest:guest", "root:r")
        given = [word.replace("|", " ") for word in words.split()]
        status, out, err = run(*given, "--json", *([] if given[0] in ("expr", "version") else ["--url", url]))
        assert status == 0, (words, out, err)
        return out

    return told


@pytest.mark.parametrize("words", LINES)
def test_of_nothing_there_is_no_line(words: str, told: Callable[..., str]) -> None:
    assert told(words) == ""


@pytest.mark.parametrize("words", LISTS)
def test_a_list_is_one_document(words: str, told: Callable[..., str]) -> None:
    assert isinstance(json.loads(told(words)), list)


@pytest.mark.parametrize("words", FACTS)
def test_facts_are_one_document(words: str, told: Callable[..., str]) -> None:
    assert json.loads(told(words)) is not None


@pytest.mark.parametrize("words", [words for words in LINES if "1000000000000" not in words])
def test_of_each_message_there_is_a_line(words: str, broker: Broker, told: Callable[..., str]) -> None:
    with connect(broker.flight_url) as client:
        client.purge("q")
        for topic in ("q", "people"):
            client.publish(topic, {"id": 1})
            client.publish(topic, {"id": 2})
        lines = told(words).splitlines()
        client.purge("q")
        client.sow_delete("people", filter="1=1")
    assert len(lines) >= 2
    assert all(isinstance(json.loads(line), dict) for line in lines)
