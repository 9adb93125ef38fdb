"""The message type goes without saying, may be said, and is refused by name when it is another."""

from __future__ import annotations

import pytest

from penstock.config.load import load_text
from penstock.config.queue_arguments import queue_settings, queue_settings_from_mapping
from penstock.errors import InvalidArgument, PreconditionFailed, SettingsError


def test_json_may_be_said_at_every_door() -> None:
    settings = load_text(
        '[[queue]]\nname = "q"\nmessage_type = "json"\nfilter = "/a = 1"\n'
        '[[topic]]\nname = "t"\nmessage_type = "json"\n'
    )
    assert settings.queue[0].settings == queue_settings_from_mapping({"filter": "/a = 1"})
    assert queue_settings_from_mapping({"message_type": "json"}) == queue_settings_from_mapping({"message_type": None})
    assert queue_settings({"x-message-type": "json"}) == queue_settings({})


@pytest.mark.parametrize("section", ["queue", "topic"])
@pytest.mark.parametrize("other", ["nvfix", "binary", ""])
def test_another_is_refused_with_what_there_is(section: str, other: str) -> None:
    said = rf"{section}.*message_type.*'{other}': fields are read of 'json' alone.* is not supported in this version"
    with pytest.raises(SettingsError, match=said):
        load_text(f'[[{section}]]\nname = "x"\nmessage_type = "{other}"\n')


def test_another_is_refused_over_amqp_and_in_python() -> None:
    with pytest.raises(PreconditionFailed, match="'nvfix' is not supported in this version, which allows 'json'"):
        queue_settings({"x-message-type": "nvfix"})
    with pytest.raises(InvalidArgument, match="message_type of queue 'q' is 'nvfix': fields are read of 'json' alone"):
        queue_settings_from_mapping({"message_type": "nvfix"}, "q")
