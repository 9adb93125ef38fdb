"""Sites whose queue a fault stops: each message is worked once all the same, and none is lost at the other sites."""

from __future__ import annotations

from collections import Counter

import pytest

from choices import examples, tried
from penstock.core.commands.containing import Due, part_of
from penstock.errors import Unavailable
from planting import Planted
from sim.sites_halting import Halting
from sim.sites_house import SiteWorld
from sim.sites_steps import Steps

SCHEDULES = 45


def halt(seed: int) -> Counter[str]:
    """One schedule."""
    return Halting(
        seed, "ab" if seed % 5 else "abc", kills=seed % 3 == 0, deletes=seed % 3 == 1, proxies=seed % 4 == 0,
        publishers=seed % 2 == 0,
    ).run_named(str(seed))  # fmt: skip


HAPPENS = ("granted", "killed", "deleted", "stopped", "refused", "sent twice", "proxied", "ended", "contained")
"""What has to be among what a run tries."""


def test_a_queue_that_is_stopped_at_one_site_costs_no_site_a_message() -> None:
    tried(halt, examples(SCHEDULES), HAPPENS)


def stop(site: SiteWorld) -> None:
    def due() -> None:
        raise Planted

    site.core._do(Due(part_of(site.queue), due, (site.queue,)))
    site.turn()
    assert site.queue.stopped


COMPARING: list[dict[str, object]] = [
    {"max_length": 9, "overflow": "reject-publish"}, {"max_length": 9, "overflow": "block"},
    {"max_length": 9, "overflow": "drop-newest"}, {"max_length": 9}, {"max_length_bytes": 900}, {"ring_size": 9},
    {"unique": True, "dedup_key": "/id"}, {"dedup_window": 10**9, "dedup_key": "/id"},
    {"kind": "local", "max_length": 9, "overflow": "reject-publish"}, {"kind": "local", "last_value_key": "/id"},
]  # fmt: skip
"""Stopped, a queue with these refuses whoever can be told so."""


@pytest.mark.parametrize("settings", COMPARING, ids=lambda one: ",".join(map(str, one.values())))
def test_what_another_site_has_let_in_is_not_refused_by_a_stopped_queue(settings: dict[str, object]) -> None:
    """Who published it has its confirm, and a link brings nothing twice."""
    steps = Steps("ab", **settings)
    a, b = steps.a, steps.b
    stop(a)
    refused = a.publish("q", b'{"id": 0}')
    assert refused.stored == 0
    b.publish("q", b'{"id": 1}', b'{"id": 2}')
    steps.level()
    a.sync()
    a.kill()
    steps.level()
    assert [one.queue.ready + one.queue.foreign_count for one in (a, b)] == [2, 2]


def test_a_stopped_queue_that_others_have_too_is_not_deleted() -> None:
    """What is gone with it they would have for ever: its memory does not know all."""
    steps = Steps("ab")
    a, b = steps.a, steps.b
    b.publish("q", b"1")
    stop(b)
    with pytest.raises(Unavailable, match="internal error"):
        b.core.delete_queue(b.now, b.queue)
    b.sync()
    b.kill()
    steps.level()
    b.core.delete_queue(b.now, b.queue)
    b.turn()
    steps.level()
    assert a.queue.foreign_count == 0
