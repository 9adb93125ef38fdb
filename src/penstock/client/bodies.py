"""What becomes of a message's body: bytes, text, parsed JSON, or any type that pydantic or msgspec makes of JSON."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import orjson

from penstock.errors import InvalidArgument, InvalidBody

JSON = "application/json"

SHOWN = 3
"""Mistakes of one body that its refusal names."""

Reader = Callable[[bytes, "str | None"], object]
"""What becomes of a body with its content type; InvalidBody when nothing does."""


def reader_of(annotation: object, who: str) -> Reader:
    """How bodies become what `annotation` says.

    bytes and str are the body as it is; `Any` is parsed JSON where the content type says that it is JSON, and bytes
    elsewhere.  Structs of msgspec go through msgspec, all other types through pydantic: dataclasses, models, typed
    dictionaries, lists, unions.  InvalidArgument, naming `who`, for a type of which neither makes anything.
    """
    if annotation is bytes:
        return lambda body, _: body
    if annotation is str:
        return _text
    if annotation is Any:
        return plain
    if hasattr(annotation, "__struct_fields__"):
        return _struct(annotation)
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        adapter = TypeAdapter[Any](cast("Any", annotation))
    except (PydanticUserError, TypeError) as error:
        raise InvalidArgument(f"{who}: bodies cannot become {annotation!r}: {str(error).splitlines()[0]}") from None
    return lambda body, _: _validated(adapter, body, annotation)


def plain(body: bytes, content_type: str | None) -> object:
    """Parsed JSON where the content type says so, else bytes."""
    if (content_type or "").partition(";")[0].strip().lower() != JSON:
        return body
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidBody(f"the body is no JSON: {error}") from None


def _text(body: bytes, content_type: str | None) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidBody(f"the body is no UTF-8 text: {error.reason} at byte {error.start}") from None


def _struct(annotation: object) -> Reader:
    msgspec: Any = import_module("msgspec")
    decode = msgspec.json.Decoder(annotation).decode

    def read(body: bytes, content_type: str | None) -> object:
        try:
            return decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidBody(f"the body is no {_name(annotation)}: {error}") from None

    return read


def _validated(adapter: Any, body: bytes, annotation: object) -> object:
    from pydantic import ValidationError

    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False)
        told = [f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in mistakes[:SHOWN]]
        more = [f"{len(mistakes) - SHOWN} more"] if len(mistakes) > SHOWN else []
        raise InvalidBody(f"the body is no {_name(annotation)}: {'; '.join(told + more)}") from None


def _name(annotation: object) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)
