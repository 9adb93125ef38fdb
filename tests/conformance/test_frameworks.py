"""Programs of frameworks and clients of others, as their users write them: on this server, and the same on RabbitMQ.

Each prints what came of it as JSON; `tools/frameworks` has their packages.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pika
import pytest

from choices import WITH_PACKAGES
from rabbitmq_server import BESIDE

HERE = Path(__file__).resolve()
PYTHON = HERE.parents[2] / ".venv-frameworks" / "bin" / "python"
"""Made by `make conformance`."""

pytestmark = [pytest.mark.conformance, WITH_PACKAGES]

HTTP = "127.0.0.1:0"

SAID: Mapping[str, Mapping[str, object]] = {
    "faststream": {
        "got": list(range(50)), "passed_on": [2 * n for n in range(50)], "tries": [False, True], "answer": 42,
    },
    "taskiq": {"added": [2 * n for n in range(30)], "tries": 3, "in time": True},
    "remoulade": {"added": [2 * n for n in range(30)], "tries": 3, "in time": True},
    "nameko": {
        "one by one": [2 * n for n in range(30)], "at once": [2 * n for n in range(30)],
        "error": "KeyError 'no'", "nobody": "Unknown service `nobody`",
        "heard": [n for n in range(30) for _ in range(2)],
    },
    "rabbitpy": {
        "told": [True] * 10, "got": [[n, n] for n in range(10)], "returned": "MessageReturnedException",
    },
    "amqpstorm": {
        "returned": "Message not delivered: NO_ROUTE (312) to queue 'nowhere' from exchange 'storm-x'",
        "told": [True] * 20, "got": [f"é {n}" for n in range(20)], "alive": {"status": "ok"}, "I": "guest",
        "published": {"routed": True},
        "got by http": ["via http"], "bindings": ["q", "storm-made"], "from": ["storm"], "vhosts": ["/", "storm"],
        "queue": {"arguments": {"x-max-length": 5}, "durable": True, "vhost": "/"},
        "permission": {"configure": "a", "write": "b", "read": "c"}, "missing": [404, "NOT-FOUND"],
    },
}  # fmt: skip

LEFT: Mapping[str, Mapping[str, int]] = {
    "faststream": {"fs-new": 0, "fs-done": 0, "fs-again": 0, "fs-double": 0},
    "taskiq": {"taskiq-tasks": 0, "taskiq-delay": 0, "taskiq-dead": 0},
    "remoulade": {"remoulade": 0, "remoulade.DQ": 0, "remoulade.XQ": 1},
    "nameko": {"rpc-first": 0, "rpc-second": 0},
    "rabbitpy": {"rabbitpy": 0},
    "amqpstorm": {"storm": 0},
}
"""Messages that are in queues at the end; what remoulade has tried often enough it keeps aside."""


@pytest.mark.parametrize("where", ["server", pytest.param("rabbitmq", marks=BESIDE)])
@pytest.mark.parametrize("framework", SAID)
def test_a_program_of_a_framework_runs_unmodified(framework: str, where: str, request: pytest.FixtureRequest) -> None:
    there = request.getfixturevalue(where)
    at = there.port, (there.ready["http"].rpartition(":")[2] if where == "server" else there.http)
    ended = subprocess.run(
        [str(PYTHON), str(HERE.parent / "frameworks" / f"{framework}_app.py"), *map(str, at)],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert json.loads(ended.stdout.splitlines()[-1]) == SAID[framework]
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", there.port)) as connection:
        declare = connection.channel().queue_declare
        left = {queue: declare(queue, passive=True).method.message_count for queue in LEFT[framework]}
    assert left == LEFT[framework]
