"""What the judge of kill tests may conclude from an ack of a message that the kill took back."""

from __future__ import annotations

from typing import cast

import pytest

import penstock
from crash.model_clients import Notes, Sent
from crash.test_kills_model import Look
from penstock.log.simdisk import SimDisk
from sim.serverkit import Life, clock


def judged(life: Life, notes: Notes) -> set[int]:
    """What a look at the queue finds, after its judgement."""
    found = sorted(int(body) for body in life.contents("shallow"))
    Look(cast(penstock.Client, None), notes, "the sim").judge("shallow", set(found), found)
    return set(found)


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_a_message_that_was_acked_early_and_taken_back_may_be_published_again(end: str) -> None:
    """The lease left before the commit, and so did its ack; neither was written, so nothing was ever settled."""
    notes = Notes()
    notes.sent[56] = Sent(56, False)
    life = Life(SimDisk(), clock())
    life.declare("shallow")
    consumer, publisher = life.client(), life.client(confirm=True)
    consumer.consume("shallow")
    life.run()
    consumer.take_all()
    publisher.take_all()
    publisher.publish("shallow", b"56")
    life.turn()
    assert consumer.take_all(), "the lease left early"
    assert not publisher.take_all(), "nothing is confirmed"
    notes.settled("shallow", 56, sure=False)
    consumer.ack(1)
    life.turn()
    getattr(life, end)()
    life = Life(life.disk, life.clock)
    assert judged(life, notes) == set()
    again = life.client(confirm=True)
    again.publish("shallow", b"56")
    life.run()
    assert judged(life, notes) == {56}


def test_a_message_that_was_acked_and_is_there_no_more_must_not_come_back() -> None:
    notes = Notes()
    notes.sent[56] = Sent(56, False)
    notes.settled("shallow", 56, sure=False)
    look = Look(cast(penstock.Client, None), notes, "the sim")
    look.judge("shallow", {56}, [])
    with pytest.raises(AssertionError, match="are back in shallow"):
        look.judge("shallow", {56}, [56])
