"""What bodies are read as: JSON.  It goes without saying and may be said; every other type is refused by its name.

Bodies may be anything all the same: what is no JSON is stored and delivered as it is, and has no fields.
"""

from __future__ import annotations

MESSAGE_TYPE = "message_type"

NATIVE_TYPE = "json"


def wrong_type(value: object) -> str | None:
    """Why this cannot be a message type; None for the one that can."""
    if value == NATIVE_TYPE:
        return None
    return (
        f"{str(value)[:60]!r}: fields are read of 'json' alone, and a body that is none has no fields; "
        "another message type is not supported in this version"
    )
