"""Streams of one query: who has nothing waits for news, and not while a sibling has some."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from flight_house import FlightHouse

LONG_S = 60.0


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    with FlightHouse(tmp_path) as house, penstock.connect(house.url) as client:
        yield client


class Reader:
    """A source of a query, as Spark asks it: over the queue or the topic of its name."""

    def __init__(self, client: Any, name: str, kind: str, among: list[str]) -> None:
        self.client, self.name, self.kind = client, name, kind
        self.beside = [one for one in among if one != name]
        self.epoch = client.action("stream_open", stream=name, **{kind: name})["epoch"]
        self.at = 0
        if kind == "topic":
            self.at = client.action("stream_begin", stream=name, epoch=self.epoch, bookmark="EPOCH")["start"]

    def ask(self) -> tuple[bool, float]:
        """Whether it got something, and after how many seconds."""
        began, action = time.monotonic(), "plan" if self.kind == "queue" else "plan_range"
        told = self.client.action(
            action, stream=self.name, epoch=self.epoch, start=self.at, wait=f"{LONG_S:g}s", beside=self.beside
        )
        before, self.at = self.at, told["batch" if self.kind == "queue" else "end"]
        return self.at != before, time.monotonic() - began


@pytest.mark.parametrize("kinds", [("queue", "queue"), ("topic", "topic"), ("queue", "topic"), ("topic", "queue")])
def test_an_idle_stream_waits_for_nobody_whose_sibling_has_news(client: Any, kinds: tuple[str, str]) -> None:
    for name, kind in zip(("idle", "busy"), kinds, strict=True):
        client.declare(name) if kind == "queue" else client.declare_topic(name)
    idle, busy = (
        Reader(client, name, kind, ["idle", "busy"]) for name, kind in zip(("idle", "busy"), kinds, strict=True)
    )
    client.publish("busy", b"1")
    got, took = idle.ask()
    assert not got
    assert took < LONG_S / 2, "something may have come for the other"
    assert busy.ask()[0]
    client.publish("busy", b"2")
    for _ in range(3):
        assert idle.ask()[1] < LONG_S / 2, "the other had something since"
        assert busy.ask()[0]
        client.publish("busy", b"3")
