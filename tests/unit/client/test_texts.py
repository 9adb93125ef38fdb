"""What a call of the client, of workers or of the test broker types as text, a number or a truth has to be that."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

import penstock.client.aio
from penstock import client
from penstock.client import (
    admin,
    batches,
    bodies,
    consumer,
    messages,
    queue_contents,
    reading,
    replay,
    results,
    transactions,
)
from penstock.client.aio import stream
from penstock.client.arguments import arguments_checked
from penstock.client.client import Client
from penstock.errors import InvalidArgument
from penstock.testing import broker, broker_life, expressions, inbox, subscriber, topic_records
from penstock.worker.app import App

TYPED = re.compile(r"(str|None|Sequence\[str\])( \| (str|None|Sequence\[str\]))*")
WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "int": ((True, "1", 1.5, float("nan")), "a whole number"),
    "float": ((True, "1", float("nan"), float("inf"), 1j), "a finite number"),
    "bool": (("no", 0, 1.0), "True or False"),
}
NEEDED: dict[str, object] = {"bool": True, "bytes": b"", "bytes | str": b"", "Mapping[str, object]": {}}
CLASSES: tuple[type[Any], ...] = (
    admin.Administration, queue_contents.Contents, reading.Reading, reading.Querying, Client, messages.Message,
    batches.Batch, consumer.Consumer, replay.Bookmarks, replay.Replay, transactions.Transaction, results.Task,
    penstock.client.aio.Client, penstock.client.aio.Task, penstock.client.aio.Transaction,
    stream.Message, stream.Batch, stream.Consumer, stream.Replay, App,
    inbox.Message, inbox.Subscription, broker.Broker, broker.Publishing, broker.Transaction,
    subscriber.Subscribing, topic_records.Records, broker_life.Running,
)  # fmt: skip
FUNCTIONS = (client.connect, penstock.client.aio.connect, bodies.avro, bodies.protobuf, expressions.evaluate)


def texts_of(call: Callable[..., Any]) -> list[str]:
    return [
        name for name, said in inspect.get_annotations(call).items()
        if name != "return" and isinstance(said, str) and said != "None" and TYPED.fullmatch(said)
    ]  # fmt: skip


def calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    for one in CLASSES:
        for name, method in vars(one).items():
            if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
                yield f"{one.__module__}.{one.__name__}.{name}", method
    yield from ((f"{function.__module__}.{function.__name__}", function) for function in FUNCTIONS)


def cases() -> Iterator[tuple[str, Callable[..., Any], str]]:
    for where, call in calls():
        yield from ((where, call, text) for text in texts_of(call))


def others() -> Iterator[tuple[str, Callable[..., Any], str, str]]:
    """What asks for a number or a truth, and for which."""
    for where, call in calls():
        if where.endswith("__init__") and not texts_of(call):
            continue  # made by us alone
        for name, said in inspect.get_annotations(call).items():
            kind = str(said).removesuffix(" | None")
            if name != "return" and kind in WRONG:
                yield where, call, name, kind


def called(call: Callable[..., Any], wrong: str, value: object) -> None:
    """Call it with one wrong argument, and all others as far as they are needed."""
    texts, given, places = texts_of(call), dict[str, object](), list[object]()
    for name, parameter in inspect.signature(call).parameters.items():
        if name == "self":
            places.append(object())
        elif name == wrong and parameter.kind is parameter.VAR_POSITIONAL:
            places += [*given.values(), "x", value]
            given.clear()
        elif name == wrong:
            given[name] = value
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            ours = inspect.unwrap(call).__globals__.get(parameter.annotation)
            other = object.__new__(ours) if inspect.isclass(ours) else 1
            given[name] = "x" if name in texts else NEEDED.get(str(parameter.annotation), other)
    result = call(*places, **given)
    if inspect.isawaitable(result):
        asyncio.run(_over(result))


async def _over(result: Any) -> None:
    await result


@pytest.mark.parametrize(("call", "name"), [pytest.param(*case[1:], id=f"{case[0]}:{case[2]}") for case in cases()])
def test_a_number_is_no_text(call: Callable[..., Any], name: str) -> None:
    with pytest.raises(InvalidArgument, match=rf": {name} is 5, not .*text.*: that is of type int"):
        called(call, name, 5)


@pytest.mark.parametrize(
    ("call", "name", "kind"), [pytest.param(*case[1:], id=f"{case[0]}:{case[2]}") for case in others()]
)
def test_a_number_is_one_and_a_truth_is_no_number(call: Callable[..., Any], name: str, kind: str) -> None:
    values, wanted = WRONG[kind]
    for value in values:
        said = re.escape(f": {name} is {value!r}, not {wanted}")
        with pytest.raises(InvalidArgument, match=f"{said}( or None)?: that is of type {type(value).__name__}"):
            called(call, name, value)


def test_numbers_of_other_makers_are_numbers() -> None:
    @arguments_checked
    def call(name: str, whole: int = 0, share: float | None = None, *, mark: str | int = "") -> object:
        return name, whole, share, mark

    assert call("", numpy.int64(2), numpy.float64(2.5), mark=3) == ("", 2, 2.5, 3)
    assert call("", 0, 10**400) == ("", 0, 10**400, "")
    with pytest.raises(InvalidArgument, match="call: mark is True, not text or a whole number: that is of type bool"):
        call("", mark=True)


def test_the_numbers_that_are_asked_for_are_those_that_there_are() -> None:
    found = {(where.rpartition(".")[2], name) for where, _, name, _ in others()}
    assert found >= {
        ("move", "rate"), ("move", "count"), ("replay", "limit"), ("publish", "mandatory"), ("peek", "count"),
        ("consume", "backlog"), ("set_policy", "priority"), ("worker", "concurrency"),
        ("connect", "verify"), ("release_stream", "drop"),
    }  # fmt: skip


def test_the_calls_are_those_that_there_are() -> None:
    found = {where.rpartition(".")[2] for where, _, _ in cases()}
    assert found >= {
        "publish", "delta_publish", "consume", "declare", "bind", "move", "replay", "sow", "query", "reject", "retry",
        "expire", "cancel", "submit", "task", "worker", "connect", "most_recent", "set_policy", "add_user",
    }  # fmt: skip
    for one in vars(penstock.client.aio).values():
        if inspect.isclass(one) and one.__module__.startswith("penstock.client") and one.__doc__ and texts_in(one):
            assert one in CLASSES, one


def texts_in(one: type[Any]) -> bool:
    public = (method for name, method in vars(one).items() if not name.startswith("_"))
    return any(inspect.isfunction(method) and texts_of(method) for method in public)


def test_what_consume_does_not_take_is_told_at_once_by_the_client_for_asyncio_too() -> None:
    with pytest.raises(TypeError, match="bcklog"):
        penstock.client.aio.connect("penstock://localhost:1").consume("queue", bcklog=3)  # type: ignore[call-arg]


def test_calls_of_the_blocking_client_are_those_of_the_other_too() -> None:
    class Ours(penstock.client.aio.Client):
        async def blocking(self) -> Client:
            return object.__new__(Client)

        async def run(self, work: Callable[[], Any]) -> Any:
            return work()

    async def refused() -> None:
        ours = object.__new__(Ours)
        with pytest.raises(InvalidArgument, match="delete: queue is 5, not text: that is of type int"):
            await ours.delete(5)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="publish: exchange is 0, not text: that is of type int"):
            await ours.publish("topic", b"", exchange=0)  # type: ignore[arg-type]

    asyncio.run(refused())


def test_what_may_be_left_out_and_several_texts() -> None:
    class Some:
        def call(self, one: str, other: str | None = None, *, names: str | list[str] | None = None) -> tuple[Any, ...]:
            return one, other, names

    @arguments_checked
    def several(names: Sequence[str], both: str | Sequence[str] | None = None) -> object:
        return names, both

    class Word(str):
        __slots__ = ()

    assert arguments_checked(Some)().call("a") == ("a", None, None)
    assert Some().call(Word("a"), None, names=5) == ("a", None, 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="call: one is None, not text: that is of type NoneType"):
        Some().call(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="call: other is b'x', not text or None: that is of type bytes"):
        Some().call("a", b"x")  # type: ignore[arg-type]
    assert several(["a"], "b") == (["a"], "b")
    assert several(("a", "b"), ["c"]) == (("a", "b"), ["c"])
    with pytest.raises(InvalidArgument, match="several: names is 'ab', not a sequence of texts: that is"):
        several("ab")
    with pytest.raises(InvalidArgument, match="both is a sequence with 5, not text or a sequence of texts or None"):
        several(["a"], ["b", 5])  # type: ignore[list-item]


def test_what_is_checked_stays_what_it_was() -> None:
    assert inspect.signature(Client.publish).parameters["topic"].annotation == "str"
    assert inspect.iscoroutinefunction(stream.Message.reject)
    assert Client.publish.__doc__ is not None
    assert Client.publish.__qualname__ == "Client.publish"
    assert not hasattr(messages.Message.ack, "__wrapped__")  # it has no text, and costs what it did


@pytest.mark.parametrize(("call", "name"), [pytest.param(*case[1:], id=f"{case[0]}:{case[2]}") for case in cases()])
def test_half_a_pair_of_surrogates_is_no_text(call: Callable[..., Any], name: str) -> None:
    several = "Sequence[str]" in inspect.get_annotations(call)[name]
    with pytest.raises(InvalidArgument, match=rf": {name} is .*'a\\udcff', which is no text in UTF-8"):
        called(call, name, ["x", "a\udcff"] if several else "a\udcff")


def test_half_a_pair_of_surrogates_is_no_body_and_no_header() -> None:
    nobody: Any = SimpleNamespace(address=SimpleNamespace(vhost=None))
    one = Client(nobody)
    for told, say in {
        "body is 'a\\udcff'": lambda: one.publish("q", "a\udcff"),
        "header 'h' is 'a\\udcff'": lambda: one.publish("q", b"", headers={"h": "a\udcff"}),
        "headers: the name is 'a\\udcff'": lambda: one.publish("q", b"", headers={"a\udcff": 1}),
        "sow_delete: data is 'a\\udcff'": lambda: one.sow_delete("q", data="a\udcff"),
    }.items():
        with pytest.raises(InvalidArgument, match=re.escape(f"{told}, which is no text in UTF-8")):
            say()


@pytest.mark.parametrize("name", ["priority", "not_before", "expires_at"])
def test_a_fraction_is_no_whole_number(name: str) -> None:
    nobody: Any = SimpleNamespace(address=SimpleNamespace(vhost=None))
    given: Any = {name: 1.5}
    with pytest.raises(InvalidArgument, match=rf"{name} is 1\.5, not a whole number"):
        Client(nobody).publish("q", b"", **given)
