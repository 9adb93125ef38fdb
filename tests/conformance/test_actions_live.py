"""Actions of a real server: on its own clock, with programs and its own log, under unmodified clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from live_server import LiveServer
from waiting import eventually

pytestmark = pytest.mark.conformance

SETTINGS = """
[server]
allow_execute = true

[[queue]]
name = "jobs"
max_cancels = 1

[[queue]]
name = "out"

[[action]]
name = "tick"
on = { schedule = "100ms" }
do = { publish = { topic = "out", data = "tick" } }

[[action]]
name = "bury"
on = { queue = "jobs", event = "expire" }
do = [
  { publish = { topic = "out", data = "dead {{AMPS_DATA}} {{AMPS_CORRELATION_ID}}" } },
  { execute_system = { command = "mkdir 'FOLDER/{{AMPS_DATA}}'" } },
  { echo_message = { message = "buried {{AMPS_DATA}}" } },
  { publish = { topic = "out", data = "told" } },
]

[[action]]
name = "lame"
on = { queue = "jobs", event = "delete" }
do = { query_sow = { topic = "absent", capture = "X" } }
"""


def test_actions_of_a_server(tmp_path: Path) -> None:
    settings = tmp_path / "penstock.toml"
    settings.write_text(SETTINGS.replace("FOLDER", str(tmp_path)))
    with LiveServer(tmp_path / "house", [str(settings)]) as server:
        channel = server.connect().channel()
        channel.confirm_delivery()
        channel.basic_publish("", "jobs", b"one; two")
        channel.basic_publish("", "jobs", b"three")
        for requeue in (True, False):
            method, _, _ = channel.basic_get("jobs")
            if requeue:
                channel.basic_nack(method.delivery_tag)
            else:
                channel.basic_ack(method.delivery_tag)
        wanted = {b"tick", b"dead one; two ", b"told"}
        for _, _, body in channel.consume("out", auto_ack=True, inactivity_timeout=20):
            assert body is not None, server.output()
            wanted.discard(body)
            if not wanted:
                break
        assert (tmp_path / "one; two").is_dir()
        lame = "action 'lame' failed: querying: no queue and no SOW topic 'absent'"
        eventually(lambda: lame in server.output(), server.output)  # its cause may be on disk later than the other's
        server.stop()
        assert "bury: buried one; two" in server.output()


STOPPED = """
[[queue]]
name = "jobs"

[[queue]]
name = "out"

[[action]]
on = { queue = "jobs", event = "delete" }
do = { publish = { topic = "out" } }
"""


def test_what_was_set_off_before_a_stop_is_done_once_by_then_or_after_the_start(tmp_path: Path) -> None:
    settings = tmp_path / "penstock.toml"
    settings.write_text(STOPPED)
    with LiveServer(tmp_path / "house", [str(settings)]) as server:
        channel = server.connect().channel()
        channel.confirm_delivery()
        for number in range(100):
            channel.basic_publish("", "jobs", b"%d" % number)
        for _ in range(100):
            method, _, _ = channel.basic_get("jobs")
        channel.basic_ack(method.delivery_tag, multiple=True)
        channel.queue_declare("jobs", passive=True)  # the ack has come
        server.stop()
        server.start()
        channel = server.connect().channel()

        def done() -> int:
            return int(channel.queue_declare("out", passive=True).method.message_count)

        eventually(lambda: done() >= 100, lambda: f"{done()} of 100")
        assert done() == 100


def test_a_stop_does_not_wait_for_a_program(tmp_path: Path) -> None:
    settings = tmp_path / "penstock.toml"
    settings.write_text(
        '[server]\nallow_execute = true\n[[queue]]\nname = "jobs"\n'
        '[[action]]\non = { topic = "jobs", event = "publish" }\n'
        'do = [{ echo_message = { message = "begins" } }, { execute_system = { command = "sleep 100" } }]\n'
    )
    with LiveServer(tmp_path / "house", [str(settings)]) as server:
        channel = server.connect().channel()
        channel.confirm_delivery()
        channel.basic_publish("", "jobs", b"x")
        channel.basic_publish("", "jobs", b"y")  # others are served meanwhile
        server.stop()  # long before that, and clean
        assert "begins" in server.output()
