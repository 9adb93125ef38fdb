"""Whom a leader lists that has a copy of the register of its own, and whom it sends away.

Calls between members: an address that others have told, and files that are being renewed, end nobody.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import Unavailable
from penstock.replication.messages import Hello
from penstock.replication.register import ClusterState, Member
from penstock.replication.terms import LANES, first_base
from penstock.server.cluster.folder import Known
from penstock.server.cluster.membership import listing, no_longer, not_ours
from penstock.server.cluster.speech import Peer, reach
from penstock.server.sockets import certificates
from tls_lab import Files

STATE = (
    ClusterState("c", 7, base=first_base(1), to="a")
    .with_member("a", Member("a", "a:1", 1, 4, "pa"))
    .counting("a")
    .led_by("a", 0)
    .with_member("b", Member("b", "b:1", 1, 2, "pb"))
)
B = Hello("c", 7, "b", 1, True, (), term=1, maker="pa", name="b", address="b:1", starts=2, process="pb", numbers=2)


def told(hello: Hello, state: ClusterState = STATE, here: str = "a") -> tuple[str, ClusterState | None]:
    return listing(hello, state, set(here))


def test_one_that_is_listed_as_it_is_comes_in() -> None:
    assert told(B) == ("", None)


def test_one_that_was_started_again_or_is_new_is_listed_first() -> None:
    why, wanted = told(B._replace(starts=3, process="another"))
    assert why == "it is being listed"
    assert wanted is not None
    assert wanted.members["b"] == Member("b", "b:1", 1, 3, "another", number=2)
    why, wanted = told(B._replace(member="c", name="c", numbers=5), here="ab")
    assert wanted is not None
    assert wanted.members["c"].number == 6, "a number that anybody has heard of was given"


def test_a_new_one_waits_until_all_others_are_here() -> None:
    why, wanted = told(B._replace(member="c", name="c"))
    assert (why, wanted) == ("a new member is taken when all others are here: b is away, or to be removed", None)


def test_one_whose_folder_is_an_older_copy_is_sent_away() -> None:
    for older in (B._replace(starts=1), B._replace(process="another")):
        why, wanted = told(older)
        assert "it is an older copy" in why
        assert wanted is None


def test_one_whose_copy_is_of_another_term_or_of_the_same_made_by_another_process_is_sent_away() -> None:
    """What it has of that term is not what this leader wrote: nothing of it may be cut."""
    why, wanted = told(B._replace(term=2))
    assert "is of term 2" in why
    assert wanted is None
    why, wanted = told(B._replace(term=2, numbers=9))
    assert wanted == replace(STATE, numbers=9)
    why, wanted = told(B._replace(maker="another"))
    assert "another process made term 1 too" in why
    assert wanted is None


def test_one_that_was_removed_does_not_come_back() -> None:
    state = STATE.without_member("b")
    assert told(B, state) == ("b was removed from the cluster", None)


def test_one_that_no_register_could_tell_of_is_sent_away_and_changes_nothing() -> None:
    """A leader whose copy cannot be read back would never lead again."""
    new = B._replace(member="c", name="c", address="c:1")
    for broken in (
        new._replace(name=""), new._replace(address=""), new._replace(address="a" * 513), new._replace(name="n" * 256),
        new._replace(process="p" * 256),
        new._replace(numbers=LANES),
    ):  # fmt: skip
        why, wanted = told(broken, here="ab")
        assert why.startswith("it cannot be listed: "), broken
        assert wanted is None
    assert told(new, here="ab")[0] == "it is being listed"
    long = new._replace(name="\0" * 255, address="\0" * 512, process="\0" * 255)
    _, state = told(long, here="ab")
    assert state is not None
    assert told(long._replace(member="d"), state, "abc")[0].startswith("it cannot be listed: ")


def nobody() -> Peer:
    raise AssertionError("nobody was to be reached")


@pytest.mark.parametrize(
    "address", ["", "host", "::", "h:", "h:x", "127.0.0.1:99999", "h\0:1", "..:1", f"{'a' * 64}.b:1"]
)
def test_an_address_that_is_none_is_one_that_cannot_be_reached(address: str) -> None:
    with pytest.raises(Unavailable, match="cannot be reached"):
        asyncio.run(reach(nobody, address, None))


def test_files_that_do_not_go_together_are_told_and_looked_at_again_with_the_next_call(tmp_path: Path) -> None:
    files = Files(tmp_path)
    half = tmp_path / "half.pem"
    half.write_bytes(Path(files.key).read_bytes()[:100])  # somebody writes it just now
    none = str(tmp_path / "none.pem")
    for key, why in (
        (str(half), f"cluster.certificate: {files.certificate} cannot be used with the key in {half}: "),
        (none, f"cluster.key: {none} cannot be read: No such file or directory"),
    ):
        with pytest.raises(Unavailable, match=re.escape(why)):
            asyncio.run(reach(nobody, "127.0.0.1:1", certificates.Files("cluster", files.certificate, key, files.ca)))


def test_a_folder_that_is_not_the_members_says_what_helps() -> None:
    """Of another log, as a backup that was restored without `--as-follower`; of yesterday."""
    known, mine = Known("c", "m", 1, starts=1), Member("m", "m:1", 1, 1, "pm")
    assert not_ours(known, STATE, 8).endswith(
        "this folder's of 8: a member begins with an empty folder, or with what `penstock restore --as-follower` makes"
    )
    state = STATE.with_member("m", Member("m", "m:1", 1, 2, "another"))
    assert no_longer(known, state, mine, registered=False) == (
        "the register knows of 2 starts of member m, and this folder of 1: it is an older copy, or another process has "
        "it; a member with an empty folder joins anew"
    )
