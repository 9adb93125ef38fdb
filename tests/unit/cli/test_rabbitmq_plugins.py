"""What is left out where a running RabbitMQ is taken over with plugins."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.migrating import without_plugins
from penstock.errors import InvalidArgument


def exchange(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "vhost": "/", "type": kind, "durable": True, "arguments": {}}


def binding(source: str, destination: str, kind: str = "queue") -> dict[str, Any]:
    return {"source": source, "vhost": "/", "destination": destination, "destination_type": kind, "routing_key": ""}


def test_what_plugins_have_is_left_out_and_all_of_it_told() -> None:
    """One shovel kept everything of a broker from coming."""
    ceiling = {"component": "operator_policy", "name": "ceil", "vhost": "/", "value": {}}
    limits = {"component": "vhost-limits", "name": "limits", "vhost": "/", "value": {"max-queues": 5}}
    shovel = {"component": "shovel", "name": "sh", "vhost": "/", "value": {}}
    policies = [
        {"name": "cap", "vhost": "/", "pattern": "", "definition": {"max-length": 5}},
        {"name": "fed", "vhost": "/", "pattern": "", "definition": {"federation-upstream-set": "all"}},
        {"name": "both", "vhost": "/", "pattern": "", "definition": {"federation-upstream": "up", "max-length": 5}},
    ]
    document = {
        "users": [{"name": "ann"}],
        "parameters": [ceiling, shovel, limits],
        "policies": policies,
        "exchanges": [exchange("shop", "topic"), exchange("federation: shop", "x-fed")],
        "bindings": [
            binding("shop", "q"), binding("shop", "federation: shop", "exchange"), binding("federation: shop", "q"),
        ],
    }  # fmt: skip
    taken, told = without_plugins(document)
    assert taken == {
        "users": [{"name": "ann"}],
        "parameters": [ceiling, limits],
        "policies": [policies[0], {**policies[2], "definition": {"max-length": 5}}],
        "exchanges": [exchange("shop", "topic")],
        "bindings": [binding("shop", "q")],
    }
    assert told == [
        "parameters[1] \"sh\" is left out: it belongs to the plugin 'shovel'",
        'policies[1] "fed": federation-upstream-set is left out: there is no federation',
        'policies[1] "fed" is left out, for it says nothing else: another policy may rule what it ruled',
        'policies[2] "both": federation-upstream is left out: there is no federation',
        "exchanges[1] \"federation: shop\" is left out, with its bindings: there are no exchanges of type 'x-fed'",
        "2 of the bindings are left out with exchanges that are",
    ]


def test_a_document_without_them_is_the_same() -> None:
    document = {"parameters": [], "policies": [], "exchanges": [exchange("shop", "topic")], "bindings": []}
    assert without_plugins(document) == (document, [])


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (["a"], r"is not an object"),
        (None, r"null is not an object"),
        ({"parameters": {"a": 1}}, r"parameters: .* is not a list of objects"),
        ({"exchanges": ["shop"]}, r"exchanges: .* is not a list of objects"),
        ({"policies": [{"name": "p", "definition": []}]}, r'policies\[0\] "p": definition .* is not an object'),
    ],
)
def test_what_is_no_export_is_told(document: Any, told: str) -> None:
    """As of another server, where the address was wrong."""
    with pytest.raises(InvalidArgument, match=told):
        without_plugins(document)
