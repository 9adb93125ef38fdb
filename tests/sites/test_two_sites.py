"""Two servers that share a queue over links: real processes, sockets and disks."""

from __future__ import annotations

from pathlib import Path

from sites.house import Sites, publish, work
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
