"""How passwords are kept, and which hashes are taken from outside."""

from __future__ import annotations

import base64
import hashlib

import pytest

from penstock.errors import InvalidArgument
from penstock.records.password_hashes import ALGORITHMS, ARGON2ID, IN_SETTINGS, MD5, SHA256, SHA512, check_hash
from penstock.server.people.accounts import Kept, hash_password, keep

PHC = "$argon2id$v=19$m=19456,t=2,p=1$HHg8tAKW6RB80mNygGpgtw$DmPm1lHbhieMAcLnOG0T3YqDLtBEeUCXZAb5Z/QcHvA"


def test_a_password_is_kept_by_argon2id_with_salt_of_its_own() -> None:
    one, other = keep("open sesame"), keep("open sesame")
    assert one.algorithm == ARGON2ID
    assert one.slow
    assert one.text.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert one.text != other.text
    assert one.matches("open sesame")
    assert not one.matches("open sesam")
    assert not one.matches("")
    check_hash(one.text, one.algorithm)


@pytest.mark.parametrize(("algorithm", "size"), [(SHA256, 36), (SHA512, 68), (MD5, 20)])
def test_rabbitmqs_form_is_read_and_made(algorithm: str, size: int) -> None:
    text = hash_password("open sesame", algorithm)
    assert len(base64.b64decode(text)) == size
    kept = Kept(text, algorithm)
    assert not kept.slow
    assert kept.matches("open sesame")
    assert not kept.matches("open sesam")


def test_a_hash_that_rabbitmq_made_is_that_of_its_password() -> None:
    salt = bytes.fromhex("908dc60a")  # the example of its documentation: "test12"
    digest = hashlib.sha256(salt + b"test12").digest()
    assert Kept(base64.b64encode(salt + digest).decode(), SHA256).matches("test12")


def test_no_password_is_right_where_there_is_none() -> None:
    assert keep("") == Kept("", ARGON2ID)
    for algorithm in ALGORITHMS:
        assert not Kept("", algorithm).matches("")
        check_hash("", algorithm)


@pytest.mark.parametrize(
    ("text", "algorithm", "why"),
    [
        ("AAAA", "bcrypt", "hashing_algorithm is 'bcrypt', not one of penstock_password_hashing_argon2id, rabbit"),
        ("no base64", SHA256, "password_hash is not base64"),
        ("AAAA", SHA256, "password_hash has 3 bytes, rabbit_password_hashing_sha256 has 36"),
        (PHC[:-30], ARGON2ID, "password_hash is not $argon2id$v=19$m=MEMORY,t=ROUNDS,p=LANES$SALT$DIGEST"),
        (PHC.replace("argon2id", "argon2i"), ARGON2ID, "password_hash is not $argon2id"),
        (PHC.replace("m=19456", "m=4194304"), ARGON2ID, "password_hash has m=4194304, 1 to 262144 is allowed"),
        (PHC.replace("t=2", "t=900"), ARGON2ID, "password_hash has t=900, 1 to 16 is allowed"),
        (PHC.replace("p=1", "p=0"), ARGON2ID, "password_hash has p=0, 1 to 16 is allowed"),
        (PHC.replace("m=19456", "m=7"), ARGON2ID, "password_hash has m=7, at least 8 is needed with p=1"),
        ("JkUCzPgLJlORQfs0pnwSVV/Cndw=", MD5, "hashing_algorithm is 'rabbit_password_hashing_md5'"),
    ],
)
def test_a_hash_that_cannot_be_is_refused_with_its_reason(text: str, algorithm: str, why: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_hash(text, algorithm)
    assert str(raised.value).startswith(why)


def test_what_is_taken_can_be_checked_against_a_password() -> None:
    for text, algorithm in ((PHC, ARGON2ID), (PHC.replace("p=1", "p=2").replace("m=19456", "m=16"), ARGON2ID)):
        check_hash(text, algorithm)
        assert not Kept(text, algorithm).matches("not it")
    check_hash(hash_password("x", MD5), MD5, IN_SETTINGS.values())
