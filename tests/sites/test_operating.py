"""What an operator sees of links and does to them, by command, over HTTP and with the SDK; and the story of a message
that another site owns.
"""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest

import penstock
from cluster_of_servers.house import GUEST
from forked import penstock as command_line
from penstock.errors import NotFound
from sites.house import Sites, out, penstock_says, publish, work, worked_for_one_away
from waiting import eventually


def test_a_paused_link_tells_nothing_and_goes_on_when_it_is_resumed_also_over_a_restart(tmp_path: Path) -> None:
    with Sites(tmp_path) as sites:
        a, b = sites["a"], sites["b"]
        sites.linked()
        publish(a, b"before")
        eventually(lambda: b.queue()["foreign"] == 1)
        assert penstock_says(a, "pause", "b")["state"] == "paused"
        publish(a, b"paused")
        a.stop()
        a.start()
        assert out(a)["state"] == "paused"
        assert b.queue()["foreign"] == 1
        request = urllib.request.Request(f"http://{a.ready['http']}/api/links/b/resume", b"{}", GUEST, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status in (200, 204)
        eventually(lambda: b.queue()["foreign"] == 2)
        assert work(b, 2) == [b"before", b"paused"]
        sites.empty()


def test_status_tells_both_directions_and_what_went_over(tmp_path: Path) -> None:
    with Sites(tmp_path) as sites:
        a = sites["a"]
        sites.linked()
        publish(a, b"one", b"two")
        eventually(lambda: out(a)["messages"] == 2)
        told = {one["direction"]: one for one in penstock_says(a, "status")}
        assert told["out"]["state"] == told["in"]["state"] == "up"
        assert told["out"]["link"] == told["in"]["link"] == "b"
        assert told["out"]["topics"] == ["work"]
        eventually(lambda: sites["b"].queue()["foreign"] == 2)
        [shown] = [one["penstock"] for one in sites["b"].get("/api/queues") if one["name"] == "work"]
        keys = ("foreign", "transferred_in", "transferred_out", "double", "proxied_transfer")
        assert [shown[key] for key in keys] == [2, 0, 0, 0, False]
        with urllib.request.urlopen(f"http://{a.ready['http']}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        assert 'penstock_link_up{direction="out",link="b"} 1.0' in lines
        assert 'penstock_link_messages_total{direction="out",link="b"} 2.0' in lines
        with a.client() as client, pytest.raises(NotFound, match="no \\[\\[link\\]\\] 'c'"):
            client.pause_link("c")
        assert penstock_says(a, "pause", "b")["state"] == "paused"
        assert penstock_says(a, "resume", "b")["state"] == "starting", "it is not up yet"
        sites.linked()


def test_two_sites_that_do_not_agree_say_on_what(tmp_path: Path) -> None:
    settings = {"a": 'initial_owner = "a"', "b": 'initial_owner = "b"'}
    queue = '\n[[queue]]\nname = "orders"\nkind = "group-local"\ngroup_local_queue_domain = "eu"\n'
    each = {name: queue + text + "\n" for name, text in settings.items()}
    topics = '{ pattern = "work" }, { pattern = "orders" }'
    with Sites(tmp_path, each=each, topics=topics) as sites:
        eventually(lambda: out(sites["a"])["state"] == "refused", lambda: str(out(sites["a"])))
        why = out(sites["a"])["why"]
        assert "queue 'orders' in vhost '/': its initial_owner is" in why
        assert "'a'" in why
        assert "'b'" in why


def test_a_site_with_another_name_is_refused(tmp_path: Path) -> None:
    with Sites(tmp_path, each={"a": ""}) as sites:
        sites.linked()
        b = sites["b"]
        other = f'\n[[link]]\nname = "c"\nto = ["{b.url}"]\ntopic = [{{ pattern = "work" }}]\n'
        settings = sites["a"].settings
        settings.write_text(settings.read_text() + other)
        sites["a"].stop()
        sites["a"].start()

        def state() -> tuple[str, str]:
            [found] = [one for one in sites["a"].get("/api/links") if one["link"] == "c"]
            return found["state"], str(found["why"])

        eventually(lambda: state()[0] == "refused", lambda: str(state()))
        assert "this site is called 'b', and the link is to 'c'" in state()[1]


def test_a_link_takes_an_administrator(tmp_path: Path) -> None:
    user = '\n[[user]]\nname = "guest"\npassword = "guest"\ntags = ["administrator"]\n'
    user += '[[user]]\nname = "worker"\npassword = "w"\n'
    with Sites(tmp_path, each={"b": user}, link='user = "worker"\npassword = "w"') as sites:
        eventually(lambda: out(sites["a"])["state"] == "down", lambda: str(out(sites["a"])))
        eventually(lambda: "administrator" in str(out(sites["a"])["why"]), lambda: str(out(sites["a"])))
        with pytest.raises(penstock.PenstockError), sites["b"].client() as client:
            client.resume_link("none")


def test_a_link_whose_user_is_no_administrator_any_more_tells_nothing_more(tmp_path: Path) -> None:
    """It was judged as it came up, and lasts for months."""
    with Sites(tmp_path, link='user = "linker"\npassword = "a long password"') as sites:
        a, b = sites["a"], sites["b"]

        def tags(*wanted: str) -> None:
            with b.client() as client:
                client.set_user_tags("linker", *wanted)

        for site in sites:
            with site.client() as client:
                client.add_user("linker", "a long password", tags=["administrator"])
        eventually(lambda: out(a)["state"] == "up", lambda: str(out(a)))
        publish(a, b"one")
        eventually(lambda: b.waiting() == 1)
        tags("monitoring")
        publish(a, b"two")
        eventually(lambda: out(a)["state"] == "down", lambda: str(out(a)))
        assert "administrator" in str(out(a)["why"])
        publish(a, b"three")
        assert b.waiting() <= 2, "what was under way may be there"
        tags("administrator")
        eventually(lambda: b.waiting() == 3, lambda: str(out(a)))


def test_an_operator_has_one_site_act_for_another_that_is_away(tmp_path: Path) -> None:
    with Sites(tmp_path) as sites:
        a, b = sites["a"], sites["b"]
        worked_for_one_away(sites)
        assert a.queue()["proxied_transfer"]
        b.start()
        sites.empty()
        assert penstock_says(a, "proxy", "work", "off")["proxied_transfer"] is False


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
                done = command_line("message", "show", message.bookmark, "--url", b.url)
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
