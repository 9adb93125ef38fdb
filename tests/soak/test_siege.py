"""That a siege has something to say at each door, and notices what it is there to notice.

`make soak-hostile` does it for an hour: a shorter one shows little, and costs much.
"""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from choices import SEED, examples
from hostile.attacks import Attack, Mob, Target, attacks
from soak.books import body_of
from soak.fort import MEMORY
from soak.siege import OVER_MOST, Siege
from soak.siege_clients import Ledger

NOWHERE = Target({}, "weak", "weak")


def attack_id(attack: Attack) -> str:
    return f"{attack.protocol}-{attack.name}"


@pytest.mark.parametrize("attack", [one for one in attacks() if isinstance(one.run, Mob)], ids=attack_id)
def test_an_attack_has_something_to_say(attack: Attack) -> None:
    """All of what one connection says, several times over: whatever fails there would be an attack that is none."""
    assert isinstance(attack.run, Mob)
    said = [islice(attack.run.words(NOWHERE, Random(seed)), 40) for seed in range(SEED, SEED + examples(12))]
    assert [piece for words in said for piece in words if isinstance(piece, bytes)]


def test_each_door_has_attacks_before_a_login_and_behind_one() -> None:
    rows = attacks()
    assert len({(one.name, one.protocol) for one in rows}) == len(rows)
    for protocol in ("amqp", "http", "http2"):
        mine = [one.login for one in rows if one.protocol == protocol]
        assert mine.count(True) >= 9
        assert mine.count(False) >= 6
    assert any(one.protocol == "cluster" for one in rows)


@pytest.fixture
def siege(tmp_path: Path) -> Siege:
    """Without a server: its output is written here."""
    return Siege(tmp_path / "made", 1.0, SEED, say=lambda _: None)


def test_nothing_that_a_siege_remembers_hides_what_it_does(siege: Siege) -> None:
    assert not vars(siege).keys() & vars(Siege).keys()


def said(siege: Siege, *lines: str) -> None:
    with (siege.folder / "output.txt").open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))
    siege.listen()


def test_a_door_that_ends_under_an_attack_is_told_of(siege: Siege) -> None:
    siege.history.append((time.monotonic(), 0, "bombs", "flight_tls"))
    said(siege, "WARNING the process of the flight door ended with status -6: another one begins")
    assert siege.books.wrong == []
    assert siege.deaths == ["the flight door ended with -6 under ['flight_tls: bombs']"]


def test_a_door_that_ends_and_was_not_attacked_is_a_fault(siege: Siege) -> None:
    siege.history.append((time.monotonic() - 1000, 0, "bombs", "flight"))  # the one that went on a moment ago is http's
    siege.history.append((time.monotonic() - 500, 0, "events unread", "http"))
    said(siege, "WARNING the process of the amqp-1 door ended with status 75: another one begins")
    assert "nobody attacked it" in siege.books.wrong[0]
    said(siege, "WARNING the process of the flight door ended with status -9: another one begins")
    assert "the flight door ended with -9, and nobody attacked it" in siege.books.wrong[1]


@pytest.mark.parametrize("line", ["Traceback (most recent call last):", "the amqp door is cut off: it sends no socket"])
def test_what_a_server_must_not_say_is_a_fault(siege: Siege, line: str) -> None:
    said(siege, "INFO calm", line)
    assert len(siege.books.wrong) == 1


def test_what_comes_twice_without_a_mark_is_a_fault() -> None:
    books = Ledger()
    mine = books.publisher("web")
    [number] = books.send(mine, 1)
    books.deliver(body_of(mine, number), False, "web")
    books.deliver(body_of(mine, number), True, "web")
    assert books.wrong == []
    books.deliver(body_of(mine, number), False, "web")
    assert books.wrong == ["0.0 of web came twice, and was not marked"]


def test_accounts_that_stay_above_the_memory_are_told(siege: Siege) -> None:
    for _ in range(3 * OVER_MOST):
        siege.judge_accounts({"sending": MEMORY, "partial": 1})
        siege.judge_accounts({"sending": MEMORY // 2, "partial": MEMORY // 2})
    assert not siege.books.wrong
    for _ in range(OVER_MOST + 1):
        siege.judge_accounts({"sending": MEMORY, "partial": 1})
    [told] = siege.books.wrong
    assert "'sending': 134217728" in told
