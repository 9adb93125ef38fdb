"""What a filter asks about who asks is answered in its text."""

from __future__ import annotations

import json

import pytest

from penstock.errors import ExpressionError
from penstock.expr import compile_filter
from penstock.expr.context import Context
from penstock.expr.filter import bound

ANN = Context(client_name="till-7", user="ann", instance_name="north")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/owner = USER()", "/owner = 'ann'"),
        ("/a = 1 AND user ( ) = /owner OR CLIENT_NAME()='x'", "/a = 1 AND 'ann' = /owner OR 'till-7'='x'"),
        ("AMPS_INSTANCE_NAME() = 'north'", "'north' = 'north'"),
        ("/user = 'USER()'", "/user = 'USER()'"),
        ("/USER/x = 1", "/USER/x = 1"),
        ("CLIENT_VERSION() = 'x'", "CLIENT_VERSION() = 'x'"),  # nobody knows it here
    ],
)
def test_calls_become_literals_and_nothing_else_does(text: str, expected: str) -> None:
    assert bound(text, ANN) == expected


def test_a_text_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ExpressionError):
        bound("this is no expression USER(", ANN)


@pytest.mark.parametrize("name", ["o'neil", "back\\slash", "quote'); DROP --", "two\nlines", "Zoë", "' OR 1=1 OR 'x"])
def test_no_name_says_more_than_itself(name: str) -> None:
    filter = compile_filter(bound("/owner = USER()", Context(user=name)))
    assert filter.matches([json.dumps({"owner": name}).encode(), b'{"owner": "x"}', b'{"owner": ""}']) == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("USER() = 'x'", "USER cannot be used here: it asks for more than the message (who asks"),
        ("LEASE_COUNT() > 1", "LEASE_COUNT cannot be used here: .*the leases of the message, which change"),
        ("SOW_KEY() = '1'", "SOW_KEY cannot be used here: .*queries of records"),
    ],
)
def test_what_nobody_answers_is_refused_by_name_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ExpressionError, match=why.replace("(", r"\(")):
        compile_filter(text)
