"""Topics that keep what no queue takes, with a key records; and the views that are asked for like them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.core.publishing.body_checks import check_mode
from penstock.errors import NotFound
from penstock.operations.operation import Answer, Operation
from penstock.records import body_schemas
from penstock.records.message_types import JSON, MESSAGE_TYPE
from penstock.records.rights import SEES, TENDS, sees
from penstock.records.schema_versions import version, versions
from penstock.records.sow_settings import (
    EXPIRATION,
    INDEX,
    JSON_SCHEMA,
    JSON_SCHEMA_CHECK,
    KEY,
    KEY_DOMAIN,
    KEY_FROM,
    SCHEMA,
)
from penstock.units import format_duration
from penstock.wire.fields import VHOST, Field, Fields, flag, name, text
from penstock.wire.flight.tickets import TEXT_LIMIT

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.operations.house import House
    from penstock.server.access import Who


def declare_topic(house: House, who: Who, topic: str, exchange: str, vhost: str, settings: object = None) -> Answer:
    """Keep what is published to it and no queue takes.  settings: None leaves what is there as it is."""
    asked = None if settings is None else _settings(Fields.of("declare_topic: settings", settings))
    house.core.declare_topic(house.now(), vhost, exchange, topic, asked)
    return {"topic": topic}


def _settings(f: Fields) -> dict[str, object]:
    given: dict[str, object] = {
        KEY: f.texts("key", 100), KEY_DOMAIN: f.optional_text("key_domain"), KEY_FROM: f.optional_text("key_from"),
        EXPIRATION: f.duration("expiration", 0), INDEX: f.optional_text("index"),
        SCHEMA: f.optional_text("schema", TEXT_LIMIT),
        MESSAGE_TYPE: f.optional_text(MESSAGE_TYPE, body_schemas.TEXT_MOST),
        JSON_SCHEMA: f.optional_text(JSON_SCHEMA, TEXT_LIMIT), JSON_SCHEMA_CHECK: f.optional_text(JSON_SCHEMA_CHECK),
    }  # fmt: skip
    f.finish()
    return {key: value for key, value in given.items() if value}


def register_schema(house: House, who: Who, topic: str, schema: str, exchange: str, vhost: str, unless: bool) -> Answer:
    """Another schema for readers; the topic's other settings stay.  `unless`: one that it has stays as well."""
    found = house.core.register_schema(house.now(), vhost, exchange, topic, schema, unless=unless)
    return {"topic": topic, "schema": found[SCHEMA], "version": version(found)}


def delete_topic(house: House, who: Who, topic: str, exchange: str, vhost: str) -> Answer:
    """Keep nothing more, and forget its records."""
    house.core.delete_topic(house.now(), vhost, exchange, topic)
    return {"topic": topic}


def topics(house: House, who: Who, vhost: str) -> Iterator[Mapping[str, object]]:
    """Declared topics that the user may see, then views and conflated topics, each kind by name."""
    declared = house.core.topology.topics
    for found in sorted(one for one in declared if one[0] == vhost):
        if (who.rights is None or who.rights.sees_topic(*found)) and found in declared:
            yield facts(house.core, found)
    for view in house.views(vhost):
        if who.rights is None or who.rights.sees_topic(vhost, "", str(view["topic"])):
            yield view


def topic(house: House, who: Who, topic: str, exchange: str, vhost: str) -> Answer:
    """One declared topic or view as facts.  NotFound."""
    if (vhost, exchange, topic) in house.core.topology.topics:
        return facts(house.core, (vhost, exchange, topic))
    views = () if exchange else house.views(vhost)
    found = next((one for one in views if one["topic"] == topic), None)
    if found is None:
        raise NotFound(f"no declared topic '{topic}' in vhost '{vhost}'")
    return found


def facts(core: Core, name: tuple[str, str, str]) -> dict[str, object]:
    """What was declared of a topic; with a key, the figures of its records: those of what happened since the start."""
    settings, sow = core.topology.topics[name], core.sows.by_name.get(name)
    life = settings.get(EXPIRATION)
    found: dict[str, object] = {
        "topic": name[2], "kind": "topic", "exchange": name[1], "vhost": name[0], "key": settings.get(KEY),
        "key_from": settings.get(KEY_FROM), "key_domain": settings.get(KEY_DOMAIN),
        "expiration": format_duration(life) if isinstance(life, int) else None, "index": settings.get(INDEX),
        "schema": settings.get(SCHEMA), "schema_version": version(settings),
        "schemas": {str(number): text for number, text in versions(settings).items()},
        MESSAGE_TYPE: settings.get(MESSAGE_TYPE, JSON),
    }  # fmt: skip
    if (check := check_mode(settings)) != "off":
        failures = core.check_failures(name)
        found |= {"json_schema_check": check, "json_schema_failed": failures.count, "json_schema_last": failures.last}
    if sow is not None:
        found |= {
            "records": sow.index.count, "index_bytes": sow.index.nbytes, "inserted": sow.inserted,
            "updated": sow.updated, "deleted": sow.deleted, "expired": sow.expired,
        }  # fmt: skip
    return found


_TOPIC = (name("topic"), text("exchange", ""), VHOST)
_HERE = "over HTTP topics with a key are listed, and declared by the settings"

DECLARE_TOPIC = Operation(
    "declare_topic", declare_topic, "decide",
    "topic, exchange, settings: keep what no queue takes; a key makes records", TENDS,
    (*_TOPIC, Field("settings", "value")), sdk="declare_topic", missing=_HERE,
)  # fmt: skip
REGISTER_SCHEMA = Operation(
    "register_schema", register_schema, "decide",
    "topic, exchange, schema, unless: the next version of its schema; unless: if it has none", TENDS,
    (*_TOPIC, name("schema", TEXT_LIMIT), flag("unless")), sdk="register_schema", cli="topic schema", missing=_HERE,
)  # fmt: skip
DELETE_TOPIC = Operation(
    "delete_topic", delete_topic, "decide", "topic, exchange: keep nothing more, forget its records", TENDS, _TOPIC,
    sdk="delete_topic", missing=_HERE,
)  # fmt: skip
TOPICS = Operation(
    "topics", topics, "list", "every declared topic and view of a vhost with its counts", SEES, (VHOST,), key="topics",
    sdk="topics", cli="topic list", missing=_HERE,
)  # fmt: skip
TOPIC = Operation(
    "topic", topic, "look", "topic, exchange: one of them", sees("topic", "topic"), _TOPIC, sdk="topic",
    cli="topic show", missing=_HERE,
)  # fmt: skip
