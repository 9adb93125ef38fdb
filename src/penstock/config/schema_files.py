"""A `message_type` of the settings file that names the files of its schemas.

    message_type = { avro = "orders.avsc" }                            bodies of one schema, bare
    message_type = { avro = { 7 = "orders-7.avsc", 9 = "orders-9.avsc" } }    each begins with the id of its own
    message_type = { protobuf = "shop.pb", message = "shop.Order" }    what protoc --descriptor_set_out has written

Files are read once, when the settings are; whether they are schemas is found out where bodies are read.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import orjson

from penstock.errors import InvalidArgument
from penstock.records.body_schemas import AVRO, BARE, PROTOBUF, UNPACKED_MOST, packed

MESSAGE = "message"


def of_files(table: Mapping[str, object]) -> str:
    """The message type that a table means.  ValueError, with a sentence, where it means none."""
    bases = [base for base in (AVRO, PROTOBUF) if base in table]
    message = table.get(MESSAGE)
    if len(bases) != 1 or table.keys() - {*bases, MESSAGE} or (message is None) == (bases == [PROTOBUF]):
        raise ValueError('a table is { avro = "FILE" } or { protobuf = "FILE", message = "NAME" }; or { ID = "FILE" }')
    base, given = bases[0], table[bases[0]]
    files = cast("Mapping[str, object]", given) if isinstance(given, Mapping) else {str(BARE): given}
    schemas = dict[int, object]()
    for number, path in files.items():
        if not number.isdecimal() or not isinstance(path, str):
            raise ValueError(f"{number} = {path!r} is no id and no file")
        schemas[int(number)] = _read(base, path, str(message))
    try:
        return packed(base, schemas)
    except InvalidArgument as error:
        raise ValueError(str(error)) from None


def _read(base: str, path: str, message: str) -> object:
    try:
        with Path(path).open("rb") as file:
            data = file.read(UNPACKED_MOST + 1)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if base == PROTOBUF:
        return b64encode(data).decode(), message
    try:
        return orjson.dumps(orjson.loads(data)).decode()
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
