"""Rules of queues over several sites, and the eight interleavings that they were made for."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from choices import SEED
from penstock.core.links import carried
from penstock.core.links.asking import (
    AGAIN_FIRST,
    BESIDES_MOST,
    BESIDES_SPANS,
    PATIENCE_LEAST,
    PATIENCE_MOST,
    Ask,
    Asking,
    Waiting,
)
from penstock.core.links.carried import Numbers, adjacent, may_go_on
from penstock.core.links.ownership import (
    EARLY_MOST,
    RETURNED_MOST,
    Claim,
    Claims,
    Early,
    EarlyClaim,
    Grant,
    Place,
    Returned,
    grants,
    holds_against,
    proxied,
)
from penstock.core.links.sharing import Offer, Site, disagreements, first_owner, identity_of
from penstock.core.state.durable import DurableState
from penstock.errors import QueueFull
from penstock.records.queue_settings import QueueSettings

A, B = Site("a", 11, "east"), Site("b", 22, "west")
EVERYWHERE, OWN = QueueSettings(), QueueSettings(kind="local")
GROUP = QueueSettings(kind="group-local", initial_owner="a")
DOMAIN = QueueSettings(kind="group-local", initial_owner="a", group_local_queue_domain="orders")


# -- identity


@pytest.mark.parametrize(
    ("settings", "same"), [(EVERYWHERE, True), (GROUP, False), (DOMAIN, True), (OWN, False)],
    ids=["distributed", "of a group", "with a domain", "local"],
)  # fmt: skip
def test_which_queues_of_two_sites_are_one(settings: QueueSettings, same: bool) -> None:
    assert (identity_of("/", "q", settings, A) == identity_of("/", "q", settings, B)) is same


def test_a_queue_of_a_group_is_one_in_the_group() -> None:
    assert identity_of("/", "q", GROUP, A) == identity_of("/", "q", GROUP, Site("c", 33, "east"))
    assert identity_of("/", "q", GROUP, A) != identity_of("/", "q", EVERYWHERE, A)


def test_who_owns_a_message_first() -> None:
    assert first_owner(EVERYWHERE, "b") == "b"
    assert first_owner(GROUP, "b") == "a"
    assert first_owner(OWN, "b") is None


def test_both_sides_say_line_by_line_where_they_differ() -> None:
    here = Offer(identity_of("/", "q", GROUP, A), ("", "orders"), None, "a")
    assert not list(disagreements(here, here))
    there = here._replace(topic=("", "order"), filter="/n > 1", initial_owner="b", logged=False, sends=False)
    assert list(disagreements(here, there)) == [
        "queue 'q' in vhost '/': its underlying topic is '/orders' here and '/order' there",
        "queue 'q' in vhost '/': its filter is None here and '/n > 1' there",
        "queue 'q' in vhost '/': its initial_owner is 'a' here and 'b' there",
        "queue 'q' in vhost '/': its topic is not kept in the log there",
        "queue 'q' in vhost '/': no link carries its topic from there to the other side",
    ]
    local = here._replace(identity=identity_of("/", "q", OWN, A))
    assert list(disagreements(local, local)) == [
        "queue 'q' in vhost '/' is local: each site has its own, and its name is no topic of a link"
    ]


# -- what links carry


def test_a_message_never_goes_where_it_has_been() -> None:
    assert may_go_on([11], None, 22, ())
    assert not may_go_on([11, 22], "west", 11, ("west",))
    assert not may_go_on([11, 22], "west", 22, ("west",))
    assert may_go_on([11, 22], "west", 33, ("west",))
    assert not may_go_on([11, 22], "west", 33, ("east",)), "only groups that the link passes through"


def test_no_message_is_stored_twice_whatever_way_it_comes() -> None:
    """Two links bring the same messages of an origin in pieces: what is unknown is stored, the rest is known."""
    random = Random(SEED)
    for _ in range(30):
        numbers, stored, ours = Numbers(), dict[int, int](), 100
        for _ in range(30):
            first = random.randrange(60)
            stop = first + random.randrange(1, 9)
            for low, high in numbers.unknown(first, stop):
                ours += random.randrange(3)
                for lsn in range(low, high):
                    assert lsn not in stored
                    stored[lsn] = ours + lsn - low
                numbers.add(low, ours, high - low)
                ours += high - low
            asked = random.randrange(60), random.randrange(60)
            here = [lsn for a, b in numbers.here(*asked) for lsn in range(a, b)]
            assert here == [stored[lsn] for lsn in range(*asked) if lsn in stored]
        assert sum(count for _, _, count in numbers.runs) == len(stored)


def test_what_has_been_here_is_known_though_it_is_forgotten_and_what_has_not_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside a dictionary of all that ever came: however the links of two sites with other topics bring it."""
    random = Random(SEED)
    for _ in range(60):
        numbers, stored, ours, needed = Numbers(), dict[int, int](), 1, set[int]()
        for _ in range(40):
            first = random.randrange(1, 80)
            lsns = np.arange(first, first + random.randrange(1, 9), random.choice((1, 2)))
            new = [int(lsns[row]) for rows in numbers.unknown_rows(lsns) for row in rows]
            assert new == [lsn for lsn in lsns.tolist() if lsn not in stored]
            for run in adjacent(range(ours, ours + len(new)), np.array(new)):
                numbers.add(run[1], run[0], run[2])
            stored.update(zip(new, range(ours, ours + len(new)), strict=True))
            needed.update(range(ours, ours + len(new)))
            ours += len(new) + random.randrange(3)
            if random.random() < 0.3:
                forgot, beyond = random.randrange(ours), random.choice((0, random.randrange(ours)))
                stays = [lsn for lsn in range(beyond) if random.random() < 0.2]
                needed = {lsn for lsn in needed if lsn >= forgot and (lsn >= beyond or lsn in stays)}
                numbers.forget_below(forgot, beyond, [(lsn, lsn + 1) for lsn in stays])
            if stored and random.random() < 0.2:
                lsn = random.choice(list(stored))
                numbers.recall(lsn, stored[lsn], 1)
                needed.add(stored[lsn])
            if random.random() < 0.2:
                numbers = random.choice((numbers.copy(), Numbers(numbers.runs, numbers.floor)))
            known = [lsn for first, stop in numbers.standing(0, 100) for lsn in range(first, stop)]
            assert [numbers.here(lsn, lsn + 1) for lsn in known] == [[(stored[lsn], stored[lsn] + 1)] for lsn in known]
            assert all(lsn in known for lsn, here in stored.items() if here in needed)
            assert numbers.held == sum(here > 0 for _, here, _ in numbers.runs)
    numbers = Numbers([(10, 10, 1), (20, 20, 1)])
    assert [numbers.forget_below(21), numbers.recall(10, 10, 1), numbers.recall(20, 20, 1)] == 3 * [True]
    assert numbers.copy().unknown_rows(np.array([15])) == [range(1)], "nothing is forgotten, and this never came"
    monkeypatch.setattr(carried, "BEEN_MOST", 5)
    numbers = Numbers()
    for at in range(1, 100):
        numbers.add(10 * at, 10 * at, 1)
        numbers.forget_below(10 * at + 1)
    assert [len(numbers.runs), len(numbers.unknown_rows(np.array([15, 965, 985])))] == [5, 2]


# -- claims


def test_claims_are_heard_in_any_order_and_every_site_knows_the_same_owner() -> None:
    """Beside a dictionary: of all claims to a message that were heard the one holds that no other holds against."""
    random = Random(SEED)
    for _ in range(30):
        told = list[tuple[int, int, Claim]]()
        for _ in range(12):
            first, why = random.randrange(40), random.choice(("transfer", "yielded", "proxied"))
            told.append((first, first + random.randrange(1, 10), Claim(random.choice("abc"), random.randrange(4), why)))
        sites = [Claims("a"), Claims("a")]
        for claims in sites:
            random.shuffle(told)
            for first, stop, claim in told:
                before = [claims.of(lsn) for lsn in range(first, stop)]
                changed = {lsn for low, high in claims.put(first, stop, claim) for lsn in range(low, high)}
                here = zip(range(first, stop), before, strict=True)
                assert changed == {lsn for lsn, one in here if holds_against(claim, one)}
        for lsn in range(50):
            best = Claim("a")
            for first, stop, claim in told:
                if first <= lsn < stop and holds_against(claim, best):
                    best = claim
            assert [claims.of(lsn) for claims in sites] == [best, best]
        spans = list(sites[0].spans())
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
        left = sorted(random.sample(range(50), 10))
        sites[0].forget_but(np.array(left))
        assert all(any(low <= lsn < high for lsn in left) for low, high, _ in sites[0].spans())
        assert [sites[0].of(lsn) for lsn in left] == [sites[1].of(lsn) for lsn in left]


def test_who_owns_a_message_first_is_told_with_it() -> None:
    """And is no matter of names: nothing was claimed before."""
    for here, owner in (("a", "b"), ("b", "a")):
        claims = Claims(here)
        assert claims.put(10, 12, Claim(owner)) == [(10, 12)]
        assert [claims.of(lsn).owner for lsn in (9, 10, 11, 12)] == [here, owner, owner, here]
        assert claims.put(10, 12, Claim(owner)) == []


def test_a_grant_is_of_what_is_ready_and_owned_and_the_first_who_asks_wins() -> None:
    claims = Claims("a")
    claims.put(15, 20, Claim("c", 1, "transfer"))
    given = grants(claims, [(10, 30)], [(10, 18), (25, 40)], "b")
    assert given == [Grant(10, 15, Claim("b", 1, "transfer")), Grant(25, 30, Claim("b", 1, "transfer"))]
    for one in given:
        claims.put(*one)
    assert grants(claims, [(10, 30)], [(10, 18), (25, 40)], "c") == []
    assert [claims.of(lsn).owner for lsn in (10, 15, 24, 25, 30)] == ["b", "c", "a", "b", "a"]


def test_what_was_transferred_to_a_site_it_may_transfer_on() -> None:
    claims = Claims("b")
    claims.put(10, 20, Claim("a"))
    assert claims.put(10, 20, Claim("a")) == []
    assert grants(claims, [(10, 20)], [(10, 20)], "c") == []
    claims.put(12, 14, Claim("b", 1, "transfer"))
    assert grants(claims, [(10, 20)], [(10, 20)], "c") == [Grant(12, 14, Claim("c", 2, "transfer"))]


# -- asking


def test_a_site_asks_for_what_waits_longer_than_acks_take_and_for_no_more_than_it_has_room_for() -> None:
    asking = Asking()
    waiting = [Waiting(10, 15, "a", 0), Waiting(20, 30, "c", 0), Waiting(40, 50, "a", 1_000_000)]
    assert asking.asks(PATIENCE_LEAST - 1, waiting, 100) == []
    assert asking.asks(PATIENCE_LEAST, waiting, 0) == []
    assert asking.asks(PATIENCE_LEAST, waiting, 8) == [Ask("a", ((10, 15),)), Ask("c", ((20, 23),))]
    assert asking.under_way == 8
    for _ in range(100):
        asking.acked(400_000)
    assert asking.patience == 400_000


def test_what_was_told_hours_late_has_nobody_wait_for_hours() -> None:
    """As where a link was down: all that was acked meanwhile is told when it is up, and may be all that ever is."""
    asking = Asking()
    for _ in range(20):
        asking.acked(3_600_000_000)
    assert asking.asks(PATIENCE_MOST, [Waiting(10, 15, "a", 0)], 5) == [Ask("a", ((10, 15),))]


def test_an_ask_without_an_answer_is_repeated_later_each_time() -> None:
    asking, waiting = Asking(), [Waiting(10, 20, "a", 0)]
    now = PATIENCE_LEAST
    for pause in (AGAIN_FIRST, 2 * AGAIN_FIRST, 4 * AGAIN_FIRST, 8 * AGAIN_FIRST):
        assert asking.asks(now, waiting, 5) == [Ask("a", ((10, 15),))]
        assert asking.asks(now + pause - 1, waiting, 5) == []
        now += pause
    asking.granted("a", 5)
    assert asking.under_way == 0
    assert asking.asks(now, [Waiting(15, 20, "a", 0)], 9) == [Ask("a", ((15, 20),))]
    asking.came_up("a", ("a", "b"))
    assert asking.under_way == 0


def test_who_does_not_answer_is_told_what_would_do_as_well_and_holds_no_credit_back() -> None:
    asking, waiting = Asking(), [Waiting(10, 20, "a", 0), Waiting(30, 40, "b", 0), Waiting(50, 60, "a", 0)]
    now = PATIENCE_LEAST
    [first] = asking.asks(now, waiting, 5)
    assert asking.besides(first, now, waiting) == ()
    now += AGAIN_FIRST
    [again] = asking.asks(now, waiting, 5)
    assert again == first
    assert asking.besides(again, now, waiting) == ((15, 20), (50, 60))
    late = [*waiting, *(Waiting(100 * n, 100 * n + 99, "a", 0) for n in range(1, 200))]
    named = asking.besides(again, now, late)
    assert sum(stop - first for first, stop in named) == BESIDES_MOST
    assert len(asking.besides(again, now, [Waiting(2 * n, 2 * n + 1, "a", 0) for n in range(50, 999)])) == BESIDES_SPANS
    [other] = asking.asks(now + 1, waiting, 5)
    assert other.owner == "b", "whoever has no answer keeps nobody else waiting"


# -- the interleavings


def test_l3_what_was_granted_to_one_who_is_gone_for_good_a_proxy_gives() -> None:
    claims = Claims("c")
    claims.put(10, 20, Claim("b", 1, "transfer"))
    assert proxied(claims, [(10, 20)], "c", absent=()) == []
    assert proxied(claims, [(10, 20)], "c", absent=("b",)) == [Grant(10, 20, Claim("c", 2, "proxied"))]


def test_l4_an_ack_that_crosses_a_grant_leaves_nothing_to_ask_for() -> None:
    """What is settled is in no queue, so it is neither ready nor foreign; the claim to it says nothing."""
    claims = Claims("a")
    assert grants(claims, [(10, 12)], [(11, 12)], "c") == [Grant(11, 12, Claim("c", 1, "transfer"))]


def test_l5_each_site_acts_on_what_expired_of_its_own() -> None:
    at_a, at_b = Claims("a"), Claims("b")
    at_b.put(10, 20, Claim("a"))
    for claims in (at_a, at_b):
        claims.put(12, 14, Claim("b", 1, "transfer"))
    mine = [[lsn for lsn in range(10, 20) if claims.of(lsn).owner == claims.here.owner] for claims in (at_a, at_b)]
    assert sorted(mine[0] + mine[1]) == list(range(10, 20))
    assert mine[1] == [12, 13]


def test_l6_of_two_who_gave_without_each_other_one_holds_at_every_site() -> None:
    """A was alive and gave to C, while B acted for it: B's consumer may have it, too, and C keeps it."""
    given, taken = Claim("a").to("c", "transfer"), Claim("a").to("b", "proxied")
    for name in "abc":
        for told in ((given, taken), (taken, given)):
            claims = Claims(name)
            claims.put(10, 11, Claim("a"))
            for claim in told:
                claims.put(10, 11, claim)
            assert claims.of(10) == given
    assert holds_against(Claim("a", 1, "proxied"), Claim("b", 1, "proxied"))
    assert holds_against(taken, Claim("a")), "an owner that was away catches up with what was done for it"


def test_l7_a_settle_before_its_message_names_what_has_not_come() -> None:
    numbers = Numbers()
    numbers.add(10, 110, 5)
    assert numbers.here(13, 18) == [(113, 115)]
    assert numbers.unknown(13, 18) == [(15, 18)], "these acks are deferred"


def test_l8_what_comes_again_after_a_takeover_is_known_as_far_as_it_is_here() -> None:
    numbers = Numbers()
    numbers.add(1, 101, 6)
    assert numbers.unknown(5, 10) == [(7, 10)]


def test_what_a_site_remembers_of_claims_a_checkpoint_has_all_of_though_one_claim_went_beyond_the_bound() -> None:
    """A claim within another parts it: there are two more than before."""
    state, place = DurableState(), Place("/", "q", 7, "b")
    for at in range(EARLY_MOST - 1):
        state.early.add(EarlyClaim(3, 7, 10 * at, 10 * at + 5, Claim("b", 1)))
    state.returned.add(place, [(10 * at, 10 * at + 5) for at in range(RETURNED_MOST - 1)], Claim("b", 1))
    state.early.add(EarlyClaim(3, 7, 2, 3, Claim("c", 2)))
    state.returned.add(place, [(2, 3)], Claim("c", 2))
    assert len(list(state.early)) == EARLY_MOST + 1
    assert len(list(state.returned)) == RETURNED_MOST + 1
    for again in (state.copy(), DurableState.decode(state.encode())):
        assert again.early == state.early
        assert again.returned == state.returned


def test_what_is_forgotten_of_claims_is_forgotten_beyond_the_bound_alone() -> None:
    returned = Returned((Place("/", "q", 7, "b"), 10 * at, 10 * at + 5, Claim("b", 1)) for at in range(RETURNED_MOST))
    returned.add(Place("/", "q", 7, "c"), [(1, 2)], Claim("c", 2))
    assert len(list(returned)) == 1
    early = Early(EarlyClaim(3, 7, 10 * at, 10 * at + 5, Claim("b", 1)) for at in range(EARLY_MOST))
    with pytest.raises(QueueFull, match="would be beyond"):
        early.add(EarlyClaim(3, 7, 6, 7, Claim("c", 2)))
