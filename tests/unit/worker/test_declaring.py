"""A worker's function: what its signature says it is given, and which signatures cannot be called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, cast

import pytest

import penstock
from penstock.client.messages import Message, Rows
from penstock.errors import InvalidArgument, InvalidBody
from penstock.worker.app import App
from penstock.worker.worker import Depends, declare


@dataclass
class Order:
    """What some bodies are."""

    id: int
    total: float = 0.0


class Fake:
    """A message that has a body and a content type."""

    def __init__(self, body: bytes, content_type: str | None = None) -> None:
        self.body = body
        self.content_type = content_type


def given(function: Any, body: bytes, content_type: str | None = None) -> list[object]:
    return list(declare(function, "q").arguments(Fake(body, content_type)))  # type: ignore[arg-type]


def test_the_annotation_says_what_the_body_becomes() -> None:
    def typed(order: Order) -> None: ...
    def raw(body: bytes) -> None: ...
    def text(body: str) -> None: ...
    def many(body: list[int] | None) -> None: ...
    def plain(body) -> None: ...  # type: ignore[no-untyped-def]

    assert given(typed, b'{"id": 1, "total": 2.5}') == [Order(1, 2.5)]
    assert given(raw, b"\xff") == [b"\xff"]
    assert given(text, "é".encode()) == ["é"]
    assert given(many, b"[1,2]") == [[1, 2]]
    assert given(plain, b'{"a":1}', "application/json; charset=utf-8") == [{"a": 1}]
    assert given(plain, b'{"a":1}') == [b'{"a":1}']


def test_body_and_message_come_in_the_order_of_the_signature() -> None:
    def both(message: penstock.Message, order: Order, tries: int = 3) -> None: ...
    def named(message) -> None: ...  # type: ignore[no-untyped-def]

    first, second = given(both, b'{"id": 1}')
    assert isinstance(first, Fake)
    assert second == Order(1)
    assert isinstance(given(named, b"")[0], Fake)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"no", "the body is no Order: body: Invalid JSON"),
        (b"{}", "the body is no Order: id: Field required"),
        (b'{"id": "x", "total": "y"}', "id: Input should be a valid integer.*; total: "),
    ],
)
def test_a_body_that_does_not_fit_is_told_with_its_mistakes(body: bytes, said: str) -> None:
    def typed(order: Order) -> None: ...

    with pytest.raises(InvalidBody, match=said):
        given(typed, body)


def test_text_and_json_that_are_none() -> None:
    def text(body: str) -> None: ...
    def plain(body) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(InvalidBody, match="no UTF-8 text: invalid start byte at byte 1"):
        given(text, b"a\xff")
    with pytest.raises(InvalidBody, match="no JSON"):
        given(plain, b"{", "application/json")


def test_functions_that_cannot_be_called_are_refused_by_name() -> None:
    def nothing() -> None: ...
    def two(a: bytes, b: str) -> None: ...
    def twice(a: Message, b: Message) -> None: ...
    def keyword(a: bytes, *, b: str) -> None: ...
    def unknown(a: bytes) -> None: ...

    unknown.__annotations__["a"] = "Missing"

    def odd(a: Rows) -> None: ...

    def unmade(a: Annotated[bytes, Depends]) -> None: ...

    def lazy(a: bytes) -> Iterator[None]:
        yield

    async def slow(a: bytes) -> AsyncIterator[None]:
        yield

    cases: tuple[tuple[Callable[..., object], str], ...] = (
        (nothing, "nothing: takes no argument"),
        (two, "'b' would be a second body"),
        (twice, "'b' would be a second message"),
        (keyword, "'b' has no default"),
        (unknown, "'Missing' is not defined; define the type at module level"),
        (odd, "bodies cannot become"),
        (unmade, r"'a' names Depends and not what makes it: write Annotated\[..., Depends\(function\)\]"),
        (lazy, "lazy: is a generator, which nobody runs"),
        (slow, "slow: is a generator, which nobody runs"),
    )
    for function, said in cases:
        with pytest.raises(InvalidArgument, match=said):
            declare(function, "q")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency is 0, not a whole number from 1 to 10,000"),
        ({"concurrency": True}, "concurrency is True"),
        ({"concurrency": 4, "backlog": 3}, "a backlog of 3 leaves some of 4 at once without a message"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": "soon"}, "timeout: "),
        ({"publish": ""}, "publish is empty: name a topic, or exchange/key"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    def one(body: bytes) -> None: ...

    with pytest.raises(InvalidArgument, match=said):
        declare(one, "q", **options)
    with pytest.raises(InvalidArgument, match="name a queue"):
        declare(one, "")


@pytest.mark.parametrize("given", [5, None, "session"])
def test_what_makes_a_dependency_is_a_function(given: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"Depends: make is {given!r}, not a function: that is of type"):
        Depends(given)


def test_an_app_is_looked_at_where_it_is_made() -> None:
    """The address was looked at when the workers ran, and what is no context manager then."""
    with pytest.raises(InvalidArgument, match="'http://localhost' is no address: write penstock://"):
        App("http://localhost")
    with pytest.raises(InvalidArgument, match="App: lifespan is 5, not a function or None"):
        App(lifespan=cast("Any", 5))
