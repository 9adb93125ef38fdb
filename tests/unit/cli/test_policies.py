"""`penstock policy` and `operator-policy` against a broker, and what `queue show` says of where values came from."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from penstock.testing import Broker

Run = Callable[..., tuple[int, str, str]]


def test_policies_are_set_listed_shown_and_deleted(run: Run) -> None:
    with Broker(config={"queue": [{"name": "jobs", "lease_period": "30s"}]}) as broker:
        url = ("--url", broker.flight_url)
        told = run("policy", "set", "cap", "^jobs", '{"message-ttl": 60000}', "--priority", "2", *url)
        assert told == (0, "policy cap set\n", "")
        assert run("policy", "set", "cap", "^jobs", '{"message-ttl": 5000}', *url)[1] == "policy cap changed\n"
        assert run("operator-policy", "set", "all", "", '{"max-length": 9}', "--json", *url)[0] == 0
        assert "cap" in run("policy", "list", *url)[1]
        [policy] = json.loads(run("operator-policy", "list", "--json", *url)[1])
        assert (policy["name"], policy["apply-to"]) == ("all", "queues")
        shown = " ".join(run("queue", "show", "jobs", *url)[1].split())
        assert "message_ttl 5s policy cap" in shown
        assert "max_length 9 operator policy all" in shown
        assert "lease_period 30s argument" in shown
        assert run("policy", "delete", "cap", *url)[1] == "policy cap deleted, and what it did is undone\n"
        status, _, err = run("policy", "delete", "cap", *url)
        assert (status, "no policy 'cap'" in err) == (1, True)


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ("{", "the definition '{' is not JSON"),
        ("[]", "not a JSON object"),
        ('{"max-length": 1, "max-length": 2}', "the key 'max-length' twice"),
        ('{"max-lengt": 1}', "did you mean 'max-length'"),
    ],
)
def test_definitions_that_cannot_be(run: Run, definition: str, why: str) -> None:
    with Broker() as broker:
        status, _, err = run("policy", "set", "p", "", definition, "--url", broker.flight_url)
    assert status in (1, 2)
    assert why in err
