"""Versions of a topic's schema: numbered as they are declared, kept by restarts, and one that was found stays."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.errors import InvalidArgument
from penstock.records.sow_settings import KEPT_MOST, version, versions, with_versions
from unit.core.world import World

ONE, TWO, THREE = "id bigint", "id bigint, region string", "id bigint, region string, total double"


def declare(world: World, **settings: object) -> Mapping[str, object]:
    world.core.declare_topic(world.now, "/", "", "orders", settings)
    return world.core.topology.topics["/", "", "orders"]


def register(world: World, schema: str, *, unless: bool = False) -> Mapping[str, object]:
    return world.core.register_schema(world.now, "/", "", "orders", schema, unless=unless)


def test_each_other_schema_is_the_next_version() -> None:
    world = World()
    assert version(declare(world)) is None
    assert (version(found := declare(world, schema=ONE)), versions(found)) == (1, {1: ONE})
    assert version(declare(world, schema=ONE)) == 1
    assert versions(declare(world, schema=TWO)) == {1: ONE, 2: TWO}
    gone = declare(world)
    assert (version(gone), versions(gone)) == (None, {1: ONE, 2: TWO})
    assert (version(declare(world, schema=TWO)), version(declare(world, schema=ONE))) == (2, 3)


def test_the_same_again_is_no_record() -> None:
    world = World()
    declare(world, schema=ONE)
    declare(world, schema=TWO)
    before = world.core.topology.version
    declare(world, schema=TWO)
    world.core.declare_topic(world.now, "/", "", "orders")
    register(world, TWO, unless=True)
    assert world.core.topology.version == before


def test_a_registered_schema_leaves_the_other_settings_and_stays() -> None:
    world = World()
    declare(world, key=["/id"])
    assert register(world, ONE)["key"] == ["/id"]
    assert register(world, TWO, unless=True)["schema"] == ONE
    assert versions(register(world, TWO)) == {1: ONE, 2: TWO}
    assert version(declare(world, key=["/id"])) == 2, "as the settings' file declares it at each start"
    assert version(declare(world, key=["/id"], schema=THREE)) == 3
    assert version(declare(world, key=["/id"])) is None, "what was declared goes with the declare"


def test_a_topic_that_is_not_declared_gets_a_schema() -> None:
    world = World()
    assert version(register(world, ONE, unless=True)) == 1
    with pytest.raises(InvalidArgument, match="schema: "):
        register(world, "no schema at all")


def test_the_oldest_versions_are_forgotten_and_numbers_stay() -> None:
    settings: Mapping[str, object] = {}
    for number in range(KEPT_MOST + 5):
        settings = with_versions({"schema": f"c{number} bigint"}, settings)
    found = versions(settings)
    assert (len(found), min(found), max(found), version(settings)) == (KEPT_MOST, 6, KEPT_MOST + 5, KEPT_MOST + 5)
    assert found[6] == "c5 bigint"
