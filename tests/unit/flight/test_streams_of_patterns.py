"""Durable readers of several topics: who may read none of them finds none, and each belongs to who opened it.

One of changes is of the queue that it was opened for, also where that is not there: it has what it had counted of it.
"""

from __future__ import annotations

import pytest

import penstock
from http_lab import Http
from penstock.errors import AccessRefused, InvalidArgument, NotFound, PreconditionFailed
from penstock.testing import Broker
from scenario import broker_of


def test_who_may_read_no_topic_neither_takes_over_nor_forgets_a_stream_of_a_pattern() -> None:
    with broker_of({"name": "q"}) as broker:
        http = Http(broker)
        for name, read in (("ann", ""), ("bob", ".*")):
            http.do("PUT", f"users/{name}", {"password": name, "tags": ""}, 201)
            http.do("PUT", f"permissions/%2F/{name}", {"configure": "", "write": ".*", "read": read}, 201)
        ann, bob = (broker.flight_url.replace("guest:guest", f"{name}:{name}") for name in ("ann", "bob"))
        with penstock.connect(ann) as poor, penstock.connect(bob) as reader:
            assert reader.action("stream_open", stream="s", pattern=".*")["epoch"] == 1
            with pytest.raises(AccessRefused, match="stream 's'"):
                poor.action("stream_open", stream="s", pattern=".*")
            with pytest.raises(NotFound, match="no stream 's'"):
                poor.action("stream_release", with_vhost=False, stream="s", drop=True)
            assert reader.action("stream_open", stream="s", pattern=".*")["epoch"] == 2


def test_a_pattern_that_is_none_is_no_streams() -> None:
    """A stream reads what it was opened for, so from then on it read nothing, and its name was taken."""
    with broker_of({"name": "q"}) as broker, penstock.connect(broker.flight_url) as client:
        for exchange in ("", "amq.topic"):
            with pytest.raises(InvalidArgument, match="pattern 'a\\(' is not a regular expression: missing \\)"):
                client.action("stream_open", stream="s", pattern="a(", exchange=exchange)
        assert client.action("stream_open", stream="s", pattern="a.*")["epoch"] == 1


USERS = (("ann", ""), ("bob", ""), ("eve", "administrator"))


def test_a_stream_of_a_pattern_belongs_to_who_opened_it() -> None:
    """Who reads other topics of the pattern, or all of them, neither takes it over nor settles it nor forgets it."""
    with broker_of({"name": "q"}) as broker:
        http = Http(broker)
        for name, tags in USERS:
            http.do("PUT", f"users/{name}", {"password": name, "tags": tags}, 201)
            http.do("PUT", f"permissions/%2F/{name}", {"configure": ".*", "write": ".*", "read": ".*"}, 201)
        ann, bob, eve = (client_of(broker, name) for name, _ in USERS)
        assert ann.action("stream_open", stream="s", pattern=".*")["epoch"] == 1
        with pytest.raises(AccessRefused, match="stream 's'"):
            bob.action("stream_open", stream="s", pattern=".*")
        for action, fields in OF_A_STREAM.items():
            with pytest.raises(NotFound, match="no stream 's'"):
                bob.action(action, with_vhost=False, stream="s", **fields)
        with pytest.raises(NotFound, match="no stream 's'"):
            bob.action("sink_commit", with_vhost=False, query="k", batch=1, stages=[], settle=SETTLE)
        assert ann.action("stream_begin", with_vhost=False, stream="s", bookmark="EPOCH")
        assert ann.action("stream_open", stream="s", pattern=".*")["epoch"] == 2
        assert eve.action("stream_open", stream="s", pattern=".*")["epoch"] == 3
        for client in (ann, bob, eve):
            client.close()
        broker.restart()
        ann, bob = client_of(broker, "ann"), client_of(broker, "bob")
        with pytest.raises(AccessRefused, match="stream 's'"):
            bob.action("stream_open", stream="s", pattern=".*")
        assert ann.action("stream_open", stream="s", pattern=".*")["epoch"] == 4
        bob.action("stream_open", stream="t", topic="q")
        assert ann.action("stream_open", stream="t", topic="q")["epoch"] == 2  # of one topic: who may read it
        Http(broker).do("DELETE", "users/ann")
        assert bob.action("stream_open", stream="s", pattern=".*")["epoch"] == 5  # whose it was has gone
        bob.action("stream_release", with_vhost=False, stream="s", drop=True)
        for client in (ann, bob):
            client.close()


def test_who_has_lost_the_right_to_a_stream_is_told_so_where_it_is_his() -> None:
    """Who may not know that it is there is told what he is of one that is not."""
    with broker_of({"name": "q"}) as broker:
        http = Http(broker)

        def permit(read: str) -> None:
            for name in ("ann", "bob"):
                rights = {"configure": "", "write": "", "read": read}
                http.do("PUT", f"permissions/%2F/{name}", rights, 201 if read else 204)

        for name in ("ann", "bob"):
            http.do("PUT", f"users/{name}", {"password": name, "tags": ""}, 201)
        permit(".*")
        with client_of(broker, "ann") as ann, client_of(broker, "bob") as bob:
            ann.action("stream_open", stream="s", pattern=".*")
            bob.action("stream_open", stream="t", queue="q")
            permit("")
            with pytest.raises(AccessRefused, match="topics of exchange '' in vhost '/' refused for user 'ann'"):
                ann.action("stream_lag", with_vhost=False, stream="s")
            for client, stream in ((ann, "t"), (bob, "s"), (bob, "t"), (bob, "gone")):
                with pytest.raises(NotFound, match=f"no stream '{stream}', or none that this user may read"):
                    client.action("stream_lag", with_vhost=False, stream=stream)


@pytest.mark.parametrize("gone", [False, True])
def test_a_stream_of_changes_is_nobody_elses_when_it_is_opened_again_or_its_queue_is_gone(
    gone: bool,
) -> None:
    """From then on to the next batch it was anybody's, who read what had been counted by its name, or dropped it."""
    with broker_of({"name": "secret"}, {"name": "own"}) as broker:
        http = Http(broker)
        for name, read in (("ann", "^secret"), ("bob", "^own")):
            http.do("PUT", f"users/{name}", {"password": name, "tags": ""}, 201)
            http.do("PUT", f"permissions/%2F/{name}", {"configure": "", "write": "", "read": read}, 201)
        broker.publish("secret", b"{}")
        with client_of(broker, "ann") as ann, client_of(broker, "bob") as bob:

            def opened(client: penstock.Client, queue: str) -> object:
                return client.action("stream_open", stream="s", queue=queue, mode="changes")["epoch"]

            assert opened(ann, "secret") == 1
            batch = ann.action("plan_changes", stream="s", queue="secret", start=0)["batch"]
            if gone:
                http.do("DELETE", "queues/%2F/secret", None, 204)
            assert opened(ann, "secret") == 2
            with pytest.raises(AccessRefused, match="stream 's'"):
                opened(bob, "own")
            for act in ("stream_lag", "stream_release"):
                with pytest.raises(NotFound, match="no stream 's'"):
                    bob.action(act, with_vhost=False, stream="s")
            with pytest.raises(NotFound, match="no stream 's'"):
                list(bob.plan_batches("s", batch))
            assert sum(one.num_rows for one in ann.plan_batches("s", batch)) == 1


def test_a_stream_of_changes_is_not_moved_to_another_queue() -> None:
    """What had gone of the first queue, and what had come, were batches of the second one, for whoever reads that."""
    with broker_of({"name": "secret"}, {"name": "own"}) as broker, penstock.connect(broker.flight_url) as root:
        for name, read in (("ann", ".*"), ("bob", "^own")):
            root.add_user(name, password=name)
            root.set_permissions(name, "", "", read)
        broker.publish("secret", b"{}")
        broker.publish("own", b"[]")
        with client_of(broker, "ann") as ann, client_of(broker, "bob") as bob:

            def opened(queue: str, **more: object) -> object:
                return ann.action("stream_open", stream="s", queue=queue, mode="changes", **more)["epoch"]

            opened("secret")
            at = ann.action("plan_changes", stream="s", queue="secret", start=0)["batch"]
            for move in (
                lambda: opened("own"),
                lambda: ann.action("plan_changes", stream="s", queue="own", start=at),
                lambda: root.delete("secret") and opened("own"),
                lambda: ann.action("plan_changes", stream="s", queue="own", start=at),
            ):
                with pytest.raises(PreconditionFailed, match="reads queue 'secret' in vhost '/'"):
                    move()
            opened("own", anew=True)
            assert ann.action("plan_changes", stream="s", queue="own", start=0)["batch"] == 2
            read = [
                body for batch in (1, 2) for one in bob.plan_batches("s", batch) for body in one["body"].to_pylist()
            ]
            assert read == [b"[]"]
        with pytest.raises(InvalidArgument, match="mode 'changes' is of a queue: name it"):
            root.action("stream_open", stream="t", mode="changes")


def client_of(broker: Broker, user: str) -> penstock.Client:
    return penstock.connect(broker.flight_url.replace("guest:guest", f"{user}:{user}"))


SETTLE = {"stream": "s", "epoch": 1, "batch": 0}
OF_A_STREAM: dict[str, dict[str, object]] = {
    "stream_begin": {"bookmark": "EPOCH"},
    "plan_range": {"start": 1},
    "range_parts": {"start": 1, "end": 2, "parts": 1},
    "stream_lag": {},
    "stream_release": {"drop": True},
    "plan": {"start": 0},
    "stream_resume": {"batch": 1},
    "settle": {"batch": 0},
}
