"""How hashes of passwords are written, and which are taken.

penstock_password_hashing_argon2id    $argon2id$v=19$m=19456,t=2,p=1$SALT$DIGEST    (PHC string format; RFC 9106)
rabbit_password_hashing_sha256        base64 of four random bytes and the digest of them and the password
rabbit_password_hashing_sha512        the same
rabbit_password_hashing_md5           the same, in settings files that came from an old RabbitMQ
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Collection
from typing import NamedTuple

from penstock.errors import InvalidArgument

ARGON2ID = "penstock_password_hashing_argon2id"
SHA256, SHA512 = "rabbit_password_hashing_sha256", "rabbit_password_hashing_sha512"
MD5 = "rabbit_password_hashing_md5"
FAST = {SHA256: "sha256", SHA512: "sha512", MD5: "md5"}
"""One round of these."""
ALGORITHMS = (ARGON2ID, SHA256, SHA512)
"""Those that users of run time may have."""
IN_SETTINGS = {"argon2id": ARGON2ID, "sha256": SHA256, "sha512": SHA512, "md5": MD5}
"""Those of the settings file, as it calls them."""

SALT = 4
"""Bytes, in RabbitMQ's form."""

_MOST = {"m": 256 * 1024, "t": 16, "p": 16}
"""Of a hash that somebody brings: memory in KiB, rounds, lanes.  More would let each of its logins take the machine."""
_PHC = re.compile(
    r"\$argon2id\$v=19\$m=(?P<m>\d{1,7}),t=(?P<t>\d{1,3}),p=(?P<p>\d{1,3})"
    r"\$(?P<salt>[A-Za-z0-9+/]{11,86})\$(?P<digest>[A-Za-z0-9+/]{16,86})"
)


class Slow(NamedTuple):
    """How a digest of Argon2id is made of a password: all but the digest."""

    salt: bytes
    size: int  # bytes of the digest
    rounds: int
    lanes: int
    memory_kib: int

    def digest(self, password: str) -> bytes:
        """That of this password; tens of milliseconds."""
        from cryptography.hazmat.primitives.kdf.argon2 import Argon2id  # loaded with the first such login

        maker = Argon2id(
            salt=self.salt, length=self.size, iterations=self.rounds, lanes=self.lanes, memory_cost=self.memory_kib
        )
        return maker.derive(password.encode("utf-8", "surrogatepass"))


def parted(text: str) -> tuple[Slow, bytes]:
    """How a digest is made, and the one that a hash in the PHC format says."""
    found = _PHC.fullmatch(text)
    assert found is not None, "it was checked when it came"
    digest = _unpadded(found["digest"])
    return Slow(_unpadded(found["salt"]), len(digest), int(found["t"]), int(found["p"]), int(found["m"])), digest


def _unpadded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4))


def check_hash(text: str, algorithm: str, known: Collection[str] = ALGORITHMS) -> None:
    """InvalidArgument unless the text is a hash of this algorithm; an empty one is that of no password."""
    if algorithm not in known:
        raise InvalidArgument(f"hashing_algorithm is {algorithm[:60]!r}, not one of {', '.join(known)}")
    if not text:
        return
    if algorithm == ARGON2ID:
        _check_phc(text)
        return
    try:
        size = len(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        raise InvalidArgument("password_hash is not base64") from None
    wanted = SALT + hashlib.new(FAST[algorithm], usedforsecurity=False).digest_size
    if size != wanted:
        raise InvalidArgument(f"password_hash has {size} bytes, {algorithm} has {wanted}")


def _check_phc(text: str) -> None:
    found = _PHC.fullmatch(text)
    if found is None:
        raise InvalidArgument("password_hash is not $argon2id$v=19$m=MEMORY,t=ROUNDS,p=LANES$SALT$DIGEST")
    for name, most in _MOST.items():
        if not 1 <= int(found[name]) <= most:
            raise InvalidArgument(f"password_hash has {name}={found[name]}, 1 to {most} is allowed")
    least = 8 * int(found["p"])
    if int(found["m"]) < least:
        raise InvalidArgument(f"password_hash has m={found['m']}, at least {least} is needed with p={found['p']}")
