"""What sets actions off where messages come over links: what was published here, at other sites, or anywhere."""

from __future__ import annotations

from pathlib import Path

from sites.house import Sites, publish, work
from waiting import eventually

ACTION = """
[[queue]]
name = "seen"
kind = "local"
"""
for _source in ("local", "replicated", "all"):
    ACTION += f"""
[[action]]
name = "{_source}"
on = {{ topic = "work", event = "publish", source = "{_source}" }}
do = {{ publish = {{ topic = "seen", data = "{_source} {{{{AMPS_DATA}}}}" }} }}
"""


def test_an_action_minds_where_its_messages_were_published(tmp_path: Path) -> None:
    with Sites(tmp_path, each={"b": ACTION}) as sites:
        a, b = sites["a"], sites["b"]
        sites.linked()
        publish(a, b"there")
        publish(b, b"here")
        eventually(lambda: b.queue("seen")["ready"] == 4, lambda: str(b.queue("seen")))
        assert sorted(work(b, 4, "seen")) == [b"all here", b"all there", b"local here", b"replicated there"]
