"""What pyarrow's server does before any of our code sees it: open until Flight lives in a process of its own.

Each test says what must hold then, and fails as long as it does not.  `docs/security.md` tells operators the same.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from hostile.arrow_streams import Message, valid_streams
from hostile.pressing import Pressed

due = pytest.mark.xfail(strict=True, reason="due with Flight in a process of its own", raises=AssertionError)


@due
def test_a_dictionary_and_a_word_after_it_do_not_end_the_process(tmp_path: Path) -> None:
    """pyarrow's reader follows a null pointer when a message without data comes where it waits for dictionaries."""
    stream = valid_streams()["settle dictionary"]
    _, schema, dictionary, *_ = stream.messages
    sent = replace(stream, messages=[schema, dictionary, Message(metadata=b'{"heartbeat": true}')])
    with Pressed(tmp_path) as pressed:
        pressed.wire.exchange(sent.frames())
        pressed.judge()


LARGE = """
    import sys
    from hostile.flight_wire import FlightWire, action
    with FlightWire(sys.argv[1]) as wire:
        wire.one("DoAction", action(b"health", b"{}"))
        print(wire.one("DoAction", action(b"health", bytes(200 << 20)), timeout=60).details)
"""
"""In a process of its own: it has the 200 MB several times."""


@due
def test_a_message_of_any_size_after_a_login_does_not_take_the_memory(tmp_path: Path) -> None:
    """gRPC reads it whole and pyarrow gives it no limit, so that ours comes when the memory is taken."""
    with Pressed(tmp_path) as pressed:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(LARGE), pressed.server.ready["flight"]],
            env={"PYTHONPATH": str(Path(__file__).resolve().parents[1])}, capture_output=True, check=True, timeout=90,
        )  # fmt: skip
        assert b"bytes of JSON; at most" in done.stdout
        pressed.judge()
