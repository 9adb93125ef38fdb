"""Passwords and their hashes: by Argon2id, or in RabbitMQ's form as long as nobody has logged in with it.

RabbitMQ's form is one round of a fast hash: who steals it tries billions of passwords a second.  It is taken so that
definitions move from there to here, and is replaced when its user logs in, for then the password is known.
19 MiB and two rounds are what OWASP's cheat sheet asks of Argon2id at least: about 30 ms of a core, so it is never
worked out on the loop (`server.logins`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from penstock.records.dataclass import dataclass
from penstock.records.password_hashes import ARGON2ID, FAST, SALT, SHA256

MEMORY_KIB, ROUNDS, LANES = 19 * 1024, 2, 1


@dataclass(frozen=True, slots=True)
class Kept:
    """A password as it is kept; an empty `text` is right for no password."""

    text: str
    algorithm: str

    @property
    def slow(self) -> bool:
        """Whether `matches` takes tens of milliseconds."""
        return self.algorithm == ARGON2ID and bool(self.text)

    def matches(self, password: str) -> bool:
        """Whether this is the password, in a time that tells nothing of it."""
        if not self.text:
            return False
        given = password.encode()
        if self.algorithm == ARGON2ID:
            from cryptography.exceptions import InvalidKey  # loaded with the first such login
            from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

            try:
                Argon2id.verify_phc_encoded(given, self.text)
            except InvalidKey:
                return False
            return True
        kept = base64.b64decode(self.text)
        digest = hashlib.new(FAST[self.algorithm], kept[:SALT] + given, usedforsecurity=False).digest()
        return hmac.compare_digest(kept[SALT:], digest)


def keep(password: str) -> Kept:
    """A password by Argon2id, with new salt; tens of milliseconds.  An empty one is right for nobody."""
    if not password:
        return Kept("", ARGON2ID)
    from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

    made = Argon2id(
        salt=secrets.token_bytes(16), length=32, iterations=ROUNDS, lanes=LANES, memory_cost=MEMORY_KIB
    ).derive_phc_encoded(password.encode())
    return Kept(made, ARGON2ID)


def hash_password(password: str, algorithm: str = SHA256) -> str:
    """A password in RabbitMQ's form, with new salt."""
    salt = secrets.token_bytes(SALT)
    digest = hashlib.new(FAST[algorithm], salt + password.encode(), usedforsecurity=False).digest()
    return base64.b64encode(salt + digest).decode()
