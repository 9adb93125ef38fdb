"""Three sites in a row: what is published at one end is worked at the other, over the one between them."""

from __future__ import annotations

from pathlib import Path

from sites.house import Sites, publish, work
from waiting import eventually

KEPT = '\n[[topic]]\nname = "work"\n'


def test_an_end_works_what_the_other_owns_and_the_middle_comes_to_have_the_queue_later(tmp_path: Path) -> None:
    ways = {"ab", "ba", "bc", "cb"}
    with Sites(tmp_path, "abc", link='pass_through = ["^group-"]', ways=ways, lacks="b", each={"b": KEPT}) as sites:
        a, b, c = sites
        sites.linked()
        publish(a, b"one")
        assert (work(a, 1), work(c, 1)) == ([b"one"], [b"one"]), "it passes, and each end has its own copy"
        with b.client() as client:
            client.declare("work")
            publish(a, b"two", b"three")
            assert work(c, 2) == [b"two", b"three"]
            publish(c, b"four")
            assert work(a, 1) == [b"four"]
        eventually(lambda: sum(site.waiting() for site in sites) == 0)
        assert [site.queue()["transferred_in"] for site in sites] == [1, 0, 2]
