"""A server is killed between what sets an action off and what the action does: the next start does it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections import Counter
from pathlib import Path
from urllib.request import Request, urlopen

import pika
from pika.adapters.blocking_connection import BlockingChannel

from live_server import LiveServer
from waiting import eventually

PERSISTENT = pika.BasicProperties(delivery_mode=2)

BLOCKED = """
[server]
allow_execute = true

[[queue]]
name = "jobs"

[[queue]]
name = "told"

[[action]]
name = "tell"
on = [{ queue = "jobs", event = "delete" }, { queue = "jobs", event = "expire" }]
do = [
  { execute_system = { command = "touch 'FOLDER/begun-{{AMPS_DATA}}'" } },
  { execute_system = { command = "cat FOLDER/gate" } },
  { publish = { topic = "told" } },
]
"""


def bodies(server: LiveServer, queue: str, count: int) -> Counter[bytes]:
    """The messages of a queue once there are so many, or what there is after a while; they stay."""
    channel = server.connect().channel()

    def there() -> int:
        return int(channel.queue_declare(queue, passive=True).method.message_count)

    eventually(lambda: there() >= count, lambda: f"{there()} of {count} in {queue}: {server.output()}")
    found = Counter[bytes]()
    while (got := channel.basic_get(queue))[0] is not None:
        assert got[2] is not None
        found[got[2]] += 1
    channel.close()
    return found


def on_disk(server: LiveServer) -> None:
    """What was decided so far, though it was seen earlier than that: a later message is confirmed."""
    connection = server.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "jobs", b"later", PERSISTENT)
    connection.close()


def let_through(gate: Path) -> bool:
    """Whoever waits at the gate goes on, those that the killed server left there too."""
    with contextlib.suppress(OSError):  # nobody waits
        os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    return True


def told(channel: BlockingChannel) -> int:
    """How many actions came to their end."""
    return int(channel.queue_declare("told", passive=True).method.message_count)


def held(server: LiveServer) -> int:
    """How many of `jobs` are leased, or dead and not yet removed."""
    signed = {"Authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}"}
    asked = Request(f"http://{server.ready['http']}/api/queues/%2F/jobs", headers=signed)
    with urlopen(asked, timeout=30) as answer:
        told = json.loads(answer.read())
        return int(told["messages_unacknowledged"]) + int(told["penstock"]["dying"])


def test_what_was_set_off_before_a_kill_is_done_after_it(tmp_path: Path) -> None:
    settings = tmp_path / "penstock.toml"
    settings.write_text(BLOCKED.replace("FOLDER", str(tmp_path)))
    os.mkfifo(tmp_path / "gate")
    live = LiveServer(tmp_path / "house", [str(settings)])
    live.http = "127.0.0.1:0"
    with live as server:
        channel = server.connect().channel()
        channel.confirm_delivery()
        for body in (b"acked", b"expired"):
            channel.basic_publish("", "jobs", body, PERSISTENT)
        first, _, _ = channel.basic_get("jobs")
        second, _, _ = channel.basic_get("jobs")
        channel.basic_ack(first.delivery_tag)
        eventually((tmp_path / "begun-acked").exists, "the action did not begin")
        channel.basic_nack(second.delivery_tag, requeue=False)
        eventually(lambda: held(server) == 0, "the refused message was not removed")  # its body is read first
        on_disk(server)
        server.kill()
        (tmp_path / "begun-acked").unlink()
        server.start()  # what it had done before may come again
        eventually(
            (tmp_path / "begun-acked").exists, "it did not begin again"
        )  # what it had done before may come again
        channel = server.connect().channel()
        eventually(
            lambda: let_through(tmp_path / "gate") and told(channel) == 2, "the actions did not come to their end"
        )
        assert bodies(server, "told", 2) == {b"acked": 1, b"expired": 1}
        on_disk(server)
        server.kill()
        server.start()
        assert bodies(server, "told", 2) == {b"acked": 1, b"expired": 1}, "what is done is not done again"


LOADED = """
[[queue]]
name = "jobs"

[[queue]]
name = "seen"

[[queue]]
name = "done"

[[action]]
name = "see"
on = { topic = "jobs", event = "publish" }
do = { publish = { topic = "seen" } }

[[action]]
name = "finish"
on = { queue = "jobs", event = "delete" }
do = { publish = { topic = "done" } }
"""


def test_each_message_is_told_once_however_often_the_server_dies(tmp_path: Path, effort: int) -> None:
    settings = tmp_path / "penstock.toml"
    settings.write_text(LOADED)
    published = 0
    with LiveServer(tmp_path / "house", [str(settings)]) as server:
        for _ in range(3 * effort):
            channel = server.connect().channel()
            channel.confirm_delivery()
            for _ in range(40):
                channel.basic_publish("", "jobs", b"%d" % published, PERSISTENT)
                published += 1
                if published % 3 == 0:
                    method, _, _ = channel.basic_get("jobs")
                    channel.basic_ack(method.delivery_tag)
            server.kill()  # in the midst of what the last of them set off
            server.start()
        assert bodies(server, "seen", published) == {b"%d" % number: 1 for number in range(published)}
        channel = server.connect().channel()
        waiting = Counter[bytes]()
        while (got := channel.basic_get("jobs"))[0] is not None:
            assert got[2] is not None
            waiting[got[2]] += 1
        done = bodies(server, "done", published - waiting.total())
        assert done + waiting == {b"%d" % number: 1 for number in range(published)}
