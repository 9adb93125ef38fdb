"""What of a settings file a takeover would leave out is what it leaves out; nobody's log is changed by the look."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import SettingsError
from penstock.log.simdisk import SimDisk
from penstock.server.alarms import not_in_force
from penstock.server.cluster import rehearsal
from penstock.server.cluster.rehearsal import AGAIN_S, CALM_S, GivenUp, Rehearsal, left_out
from penstock.server.opening import apply_settings
from sim.serverkit import Life, clock, load

FILE = {
    "exchange": [{"name": "amq.direct", "type": "fanout"}],
    "queue": [{"name": "q", "last_value_key": "/k"}, {"name": "more", "recovery_point": "EPOCH"}],
    "binding": [{"source": "nowhere", "destination": "q"}],
}


def filled() -> Life:
    life = Life(SimDisk(), clock())
    client = life.client(confirm=True)
    apply_settings(life.core, load({"queue": [{"name": "q"}]}), life.engine.now)
    client.publish("q", b"{}")
    life.run()
    return life


def test_a_look_finds_what_a_takeover_leaves_out_and_changes_nothing() -> None:
    life, settings = filled(), load(FILE)
    before = {name: life.disk.open(name).size() for name in ("log/" + one for one in life.disk.list("log"))}
    found = left_out(life.disk, settings)
    assert {name: life.disk.open(name).size() for name in before} == before
    refused = list[SettingsError]()
    apply_settings(life.core, settings, life.engine.now, refuse=refused.append)
    assert found == [str(one) for one in refused]
    assert [one.split(": ")[1] for one in found] == [
        '[[exchange]] "amq.direct"', '[[queue]] "q"', '[[binding]] "nowhere -> q"'
    ]  # fmt: skip
    assert life.core.find_queue("/", "more") is not None, "all else is applied"
    assert life.core.queue("/", "q").settings.last_value_key is None
    with pytest.raises(SettingsError, match="nowhere"):
        apply_settings(life.core, load({"binding": FILE["binding"]}), life.engine.now)  # a server that is in no cluster


def test_a_look_ends_where_the_member_is_to_lead() -> None:
    with pytest.raises(GivenUp):
        left_out(filled().disk, load(FILE), over=lambda: True)


class Now:
    """The threads of a process in which each has ended before it is waited for, and its clock."""

    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at

    def Thread(self, target: Callable[..., None], args: tuple[Any, ...], **_: Any) -> Any:  # noqa: N802
        return SimpleNamespace(start=lambda: target(*args))

    def Event(self) -> Any:  # noqa: N802
        return SimpleNamespace(is_set=bool, set=lambda: None)


def test_it_is_looked_again_once_another_leads_and_rarely_else_and_told_where_it_is_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, said, looks = Now(), list[str](), list[float]()
    there = list[str]()

    def looked(*_: object) -> list[str]:
        looks.append(now.at)
        return list(there)

    monkeypatch.setattr(rehearsal, "time", now)
    monkeypatch.setattr(rehearsal, "threading", now)
    monkeypatch.setattr(rehearsal, "left_out", looked)
    cluster: Any = SimpleNamespace(known={"role": "joining"}, left_out=())
    one = Rehearsal(load({}), cluster, said.append, lambda work: work())

    def pass_until(at: float, term: int, role: str = "following") -> None:
        cluster.known = {"role": role, "connected": True, "term": term}
        one.look()
        now.at = at
        one.look()

    pass_until(100.0, 1, "joining")
    assert looks == []
    pass_until(100.0 + CALM_S, 1)
    pass_until(200.0, 1)
    assert (looks, cluster.left_out, said) == ([100.0 + CALM_S], [], [])
    there.append("line 3: no")
    pass_until(200.0 + CALM_S, 2)
    assert (len(looks), cluster.left_out, len(said)) == (2, ["line 3: no"], 1)
    pass_until(300.0 + CALM_S, 3)
    assert (len(looks), len(said)) == (3, 1)
    there.clear()
    pass_until(300.0 + CALM_S + AGAIN_S, 3)
    assert (len(looks), cluster.left_out) == (4, [])
    assert [line.removeprefix("cluster: ") for line in said] == [
        f"warning: once this member leads, {not_in_force(['line 3: no'])}",
        "once this member leads, all of its settings file is in force again",
    ]
