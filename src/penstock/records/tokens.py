"""How tokens are written: instead of a password that lasts, for who should have a login for a while alone.

penstock_ID.SECRET          what its holder has, one word
token/ID, SECRET            the same as user and password, which is what doors are told
"""

from __future__ import annotations

import re

PREFIX = "token/"
"""What the user's name of a login by token begins with."""

SHOWN = 60
"""Letters of a user's name that a refusal has."""

_TOKEN = re.compile(r"penstock_([A-Za-z0-9]{12})\.([A-Za-z0-9_-]{43})")


def written(token: str, secret: str) -> str:
    """What its holder is given.  token: its id."""
    return f"penstock_{token}.{secret}"


def login_of(text: str) -> tuple[str, str] | None:
    """User and password that a token stands for; None: it is none."""
    match = _TOKEN.fullmatch(text.strip())
    return None if match is None else (PREFIX + match[1], match[2])


def refused(user: str, host: str = "") -> str:
    """Why nobody logs in so, in a person's words.  host: where from, where that is known."""
    token = user.startswith(PREFIX)
    who, why = ("token", ": it has ended, was revoked, or is none") if token else ("user", " with this password")
    return f"{who} {user[:SHOWN]!r} may not log in{host and f' from {host}'}{why}"
