"""The message type goes without saying, may be said at every door, and is refused by name when there is none of it."""

from __future__ import annotations

import pytest

from penstock.config.load import load_text
from penstock.config.queue_arguments import queue_settings, queue_settings_from_mapping
from penstock.errors import InvalidArgument, PreconditionFailed, SettingsError
from penstock.records.message_types import MESSAGE_TYPES, SCHEMA_TYPES


def test_json_may_be_said_at_every_door() -> None:
    settings = load_text(
        '[[queue]]\nname = "q"\nmessage_type = "json"\nfilter = "/a = 1"\n'
        '[[topic]]\nname = "t"\nmessage_type = "json"\n'
    )
    assert settings.queue[0].settings == queue_settings_from_mapping({"filter": "/a = 1"})
    assert queue_settings_from_mapping({"message_type": "json"}) == queue_settings_from_mapping({"message_type": None})
    assert queue_settings({"x-message-type": "json"}) == queue_settings({})


@pytest.mark.parametrize("kind", MESSAGE_TYPES)
def test_every_type_may_be_said_at_every_door(kind: str) -> None:
    settings = load_text(
        f'[[queue]]\nname = "q"\nmessage_type = "{kind}"\n[[topic]]\nname = "t"\nmessage_type = "{kind}"\n'
    )
    assert settings.queue[0].settings.message_type == settings.topic[0].message_type == kind
    assert settings.topic[0].declared() == ({} if kind == "json" else {"message_type": kind})
    assert queue_settings_from_mapping({"message_type": kind}).message_type == kind
    assert queue_settings({"x-message-type": kind}).message_type == kind


@pytest.mark.parametrize("section", ["queue", "topic"])
@pytest.mark.parametrize("kind", SCHEMA_TYPES)
def test_a_type_without_its_schema_is_refused_with_how_the_door_has_it(section: str, kind: str) -> None:
    with pytest.raises(SettingsError, match=rf"{section}.*message_type: '{kind}' needs a schema: .* = {{ {kind} = "):
        load_text(f'[[{section}]]\nname = "x"\nmessage_type = "{kind}"\n')
    with pytest.raises((InvalidArgument, PreconditionFailed), match=f"penstock topic message-type {kind} FILE"):
        queue_settings({"x-message-type": kind})


@pytest.mark.parametrize("section", ["queue", "topic"])
@pytest.mark.parametrize("other", ["avor", "Json", ""])
def test_another_is_refused_with_what_there_is(section: str, other: str) -> None:
    with pytest.raises(SettingsError, match=rf"{section}.*message_type.*'{other}'.*msgpack"):
        load_text(f'[[{section}]]\nname = "x"\nmessage_type = "{other}"\n')


def test_another_is_refused_over_amqp_and_in_python() -> None:
    with pytest.raises(PreconditionFailed, match="x-message-type.*'avro'.*msgpack"):
        queue_settings({"x-message-type": "avro"})
    with pytest.raises(InvalidArgument, match="message_type of queue 'q'.*'avro'.*msgpack"):
        queue_settings_from_mapping({"message_type": "avro"}, "q")


def test_fields_of_bodies_without_fields_are_no_key() -> None:
    with pytest.raises(SettingsError, match="key is made of fields, and bodies of message_type binary have none"):
        load_text('[[topic]]\nname = "t"\nmessage_type = "binary"\nkey = ["/id"]\n')
