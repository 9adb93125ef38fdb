"""What became of work: a message that is submitted to a queue, and its result, which the worker keeps in a topic.

    task = client.submit("to-bill", {"id": 1})
    print(task.get(timeout="30s"))

The topic has one record for each task, by its id, until it expires: `{"id": .., "state": "done", "value": ..}`, or
`"failed"` with the `error`.  Workers write it in one step with the settling of the message (`penstock.App(results=)`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from penstock.client.arguments import arguments_checked
from penstock.client.messages import Message, Receipt
from penstock.client.replay import Replay
from penstock.errors import NotFound, WorkFailed
from penstock.units import Duration, seconds_of

RESULTS = "results"
"""The topic, unless somebody names another."""

WANTED = "x-result"
"""The header of a message whose result is waited for."""

DONE, FAILED = "done", "failed"

LOOK_S = 0.2
"""How often a topic is looked for that is not there yet."""


class Server(Protocol):
    """The client, as tasks know it."""

    @property
    def publish(self) -> Callable[..., Receipt]: ...

    @property
    def sow(self) -> Callable[..., Iterator[Message]]: ...

    @property
    def sow_and_subscribe(self) -> Callable[..., Replay]: ...


@arguments_checked
class Task:
    """What was submitted, or was once, by its id.  Made by `Client.submit` and `Client.task`."""

    def __init__(self, client: Server, id: str, results: str) -> None:
        self.id = id
        self._client, self._results = client, results

    def __repr__(self) -> str:
        return f"<Task {self.id}>"

    def record(self) -> dict[str, Any] | None:
        """What is kept of it now: `state`, `value` or `error`; None while it is not done, and when that has expired."""
        try:
            some = [one.json() for one in self._client.sow(self._results, filter=self._filter)]
        except NotFound:  # no worker has begun yet
            return None
        return some[0] if some else None

    def late(self, timeout: Duration) -> TimeoutError:
        """The error of who has waited in vain.  (Both clients call this.)"""
        within = timeout if isinstance(timeout, str) else f"{seconds_of(timeout, 'timeout'):g} s"
        return TimeoutError(f"no result of task {self.id} within {within}: there is none in topic {self._results!r}")

    def get(self, timeout: Duration = "30s") -> Any:
        """What the function returned, as JSON has it, as soon as it is there.

        Raises TimeoutError when that takes longer, and WorkFailed when the message failed for good.
        """
        until = time.monotonic() + seconds_of(timeout, "timeout")
        while (found := self.record() or self._awaited(until)) is None:
            if time.monotonic() >= until:
                raise self.late(timeout)
            time.sleep(LOOK_S)
        return value_of(found)

    def _awaited(self, until: float) -> dict[str, Any] | None:
        left = until - time.monotonic()
        if left <= 0:
            return None
        try:
            topic, terms = awaiting(self, left)
            with self._client.sow_and_subscribe(topic, **terms) as records:
                message = records.take()
        except NotFound:
            return None
        return None if message is None else message.json()

    @property
    def _filter(self) -> str:
        return f"/id = {_quoted(self.id)}"


def awaiting(task: Task, seconds: float) -> tuple[str, dict[str, Any]]:
    """The topic of a task's record, and what follows that record alone for so long, for `sow_and_subscribe`."""
    topic, filter = task._results, task._filter  # pyright: ignore[reportPrivateUsage] - no part of the task, that users see
    return topic, {"filter": filter, "timeout": seconds, "reconnect": seconds}


def value_of(record: Mapping[str, Any]) -> Any:
    """What the function returned.  WorkFailed when the message failed for good."""
    if record["state"] == FAILED:
        raise WorkFailed(str(record["error"]))
    return record["value"]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def submitted(client: Server, queue: str, body: object, results: str, options: Mapping[str, Any]) -> Task:
    """Publish a message whose result is wanted."""
    id = options.get("message_id") or secrets.token_hex(16)
    headers: dict[str, object] = {**(options.get("headers") or {}), WANTED: "1"}
    client.publish(queue, body, **{**options, "message_id": id, "headers": headers})
    return Task(client, id, results)
