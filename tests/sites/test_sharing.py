"""Two servers that share a queue over links, and three in a row: real processes, sockets and disks.

Of a row, what is published at one end is worked at the other, over the one between them.
"""

from __future__ import annotations

from pathlib import Path

from fault_proxy import Fault, Network
from sites.house import Sites, out, publish, work
from waiting import eventually


def test_a_message_published_here_is_seen_there_worked_there_and_settled_at_both(tmp_path: Path) -> None:
    with Sites(tmp_path) as sites:
        publish(sites["a"], b"one", b"two")
        eventually(lambda: sites["b"].queue()["foreign"] == 2, lambda: f"{sites['b'].queue()} {sites['b'].output()}")
        assert sites["a"].queue()["ready"] == 2
        assert work(sites["b"], 2) == [b"one", b"two"]
        sites.empty()


def test_queues_of_one_name_whose_topics_no_link_carries_have_nothing_to_agree_on(tmp_path: Path) -> None:
    apart = '\n[[queue]]\nname = "apart"\n'
    each = {"a": f"{apart}max_length = 5\n", "b": f'{apart}filter = "/x > 1"\n'}
    with Sites(tmp_path, each=each) as sites:
        sites.linked()
        publish(sites["a"], b"mine", queue="apart")
        assert sites["a"].waiting("apart") == 1
        publish(sites["a"], b"shared")
        eventually(lambda: sites["b"].queue()["foreign"] == 1)
        assert sites["b"].waiting("apart") == 0


def test_a_site_that_comes_later_behind_another_one_is_told_of_and_given_what_it_asks_for(tmp_path: Path) -> None:
    """Whoever owns the messages has to know who asks: the site between them says so when it meets him."""
    row = ("ab", "ba", "bc", "cb")
    with Network() as network:
        sites = Sites(tmp_path, "abc", network=network, ways=row, link='pass_through = [".*"]')
        for way in ("bc", "cb"):
            sites.ways[way[0], way[1]].fault(Fault.CUT)
        with sites:
            eventually(lambda: out(sites["a"])["state"] == out(sites["b"], "a")["state"] == "up")
            for way in ("bc", "cb"):
                sites.ways[way[0], way[1]].heal()
            sites.linked()
            publish(sites["a"], b"one", b"two")
            assert work(sites["c"], 2) == [b"one", b"two"]
            sites.empty()


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
