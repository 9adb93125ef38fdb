"""What people are told of a message that another site owns."""

from __future__ import annotations

import re
from pathlib import Path

from forked import penstock
from sites.house import Sites, publish
from waiting import eventually


def test_the_story_says_who_owns_a_message_since_when_and_how_often_it_was_asked_for(tmp_path: Path) -> None:
    with Sites(tmp_path) as sites:
        a, b = sites
        sites.linked()
        held = a.connect().channel()
        publish(a, b"one")
        assert held.basic_get("work")[2] == b"one"
        eventually(lambda: b.queue()["foreign"] == 1)
        with b.client() as client, client.consume("work", backlog=1):
            [message] = client.sow("work")

            def said() -> str:
                done = penstock("message", "show", message.bookmark, "--url", b.url)
                assert done.returncode == 0, done.stderr
                return str(done.stdout)

            owned = r"\d\S+Z +owned +work +site a, why first"
            asked = (
                r"site 'a' owns it, where it was published; it was never transferred, and asked for (twice|\d+ times)"
            )
            eventually(lambda: all(re.search(one, said()) for one in (owned, asked)), said)
        held.close()  # which gives it back, and so to who asks
        with b.client() as client:
            for one in client.consume("work", backlog=1):
                assert one.body == b"one"
                one.ack()
                break
        eventually(lambda: a.waiting() + b.waiting() == 0)
