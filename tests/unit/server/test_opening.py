"""What a start makes of queues that the settings file names and that are there: altered, and told of."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import SettingsError
from penstock.records.chunks import Now
from penstock.server.opening import apply_or_leave_out, apply_settings
from sim.serverkit import Life, SimDisk, clock, load


def applied(life: Life, **queue: Any) -> list[str]:
    return apply_settings(life.core, load({"queue": [{"name": "q", **queue}]}), life.engine.now)


def test_what_a_command_altered_is_taken_back_by_the_file_and_told() -> None:
    life = Life(SimDisk(), clock())
    assert applied(life, max_length=5) == []
    assert applied(life, max_length=5) == []
    queue = life.core.queue("/", "q")
    other = load({"queue": [{"name": "q", "max_length": 50, "lease_period": "30s"}]}).queue[0]
    life.core.alter_queue(life.engine.now(), queue, other.settings, other.given)
    assert applied(life, max_length=5) == [
        "queue 'q' in vhost '/' by the settings file: lease_period = 0s, and was 30s; max_length = 5, and was 50"
    ]
    assert (queue.settings.max_length, queue.settings.lease_period) == (5, 0)
    assert applied(life, max_length=5) == []


@pytest.mark.parametrize("flag", ["durable", "auto_delete"])
def test_what_comes_with_a_declare_and_stays_is_told_where_the_file_says_otherwise(flag: str) -> None:
    """Not refused: a client may have declared it so, and is not who says whether the server starts."""
    life = Life(SimDisk(), clock())
    applied(life)
    there, asked = ("true", "false") if flag == "durable" else ("false", "true")
    [line] = applied(life, **{flag: asked == "true"})
    assert line.startswith(f"queue 'q' in vhost '/' has {flag} = {there}, and not {asked} as in the settings file")


FILE = {
    "exchange": [{"name": "e", "type": "topic"}],
    "queue": [{"name": "q", "last_value_key": "/k"}, {"name": "more"}],
    "binding": [{"source": "e", "destination": "more", "key": "order.#"}],
}


def otherwise(life: Life, thing: str, now: Now) -> None:
    """A client has declared it anew, which the settings file has in another way."""
    core = life.core
    if thing == "exchange":
        core.delete_exchange(now, "/", "e")
        core.declare_exchange(now, "/", "e", "fanout", durable=True)
    else:
        core.delete_queue(now, core.queue("/", "q"))
        apply_settings(core, load({"queue": [{"name": "q"}]}), life.engine.now)
        life.client(confirm=True).publish("q", b"{}")
        life.run()


@pytest.mark.parametrize("thing", ["exchange", "queue"])
def test_what_a_client_declared_anew_keeps_no_server_from_its_start(thing: str) -> None:
    life, settings = Life(SimDisk(), clock()), load(FILE)
    assert apply_or_leave_out(life.core, settings, life.engine.now) == ([], [])
    otherwise(life, thing, life.engine.now())
    told, left_out = apply_or_leave_out(life.core, settings, life.engine.now)
    [line] = left_out
    assert f'[[{thing}]] "{FILE[thing][0]["name"]}": ' in line
    assert told == [f"warning: {line}: what was there before holds"]
    assert life.core.find_queue("/", "more") is not None, "all else is applied"


def test_what_is_wrong_in_the_file_itself_ends_a_start_but_of_a_member_of_a_cluster() -> None:
    life, settings = Life(SimDisk(), clock()), load({"binding": [{"source": "nowhere", "destination": "q"}]})
    with pytest.raises(SettingsError, match="nowhere"):
        apply_or_leave_out(life.core, settings, life.engine.now)
    assert len(apply_or_leave_out(life.core, settings, life.engine.now, member=True)[1]) == 1
