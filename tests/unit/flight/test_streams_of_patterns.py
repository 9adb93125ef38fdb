"""Durable readers of several topics: who may read none of them finds none."""

from __future__ import annotations

import pytest

import penstock
from http_lab import Http
from penstock.errors import AccessRefused, NotFound
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
