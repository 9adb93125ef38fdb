"""What a function is given of a message's body: bytes, text, or whatever its annotation says that JSON becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import orjson

from penstock.client.messages import Values
from penstock.errors import InvalidArgument

JSON = "application/json"

SHOWN = 3
"""Mistakes of one body that its refusal names."""

Reader = Callable[[Values], object]
"""What becomes of a message; InvalidBody when it cannot."""


class InvalidBody(ValueError):
    """A body is not what the function takes, and never will be.  Only a worker sees it, and rejects the message."""


def reader_of(annotation: object, who: str) -> Reader:
    """How bodies become what `annotation` says.

    bytes and str are the body as it is; without an annotation JSON is parsed where the content type says that it is
    JSON, and anything else stays bytes.  All other types go through pydantic: dataclasses, models, typed dictionaries,
    lists, unions.  InvalidArgument, naming `who`, for a type of which pydantic makes nothing.
    """
    if annotation is bytes:
        return lambda message: message.body
    if annotation is str:
        return _text
    if annotation is Any:
        return _plain
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        adapter = TypeAdapter[Any](cast("Any", annotation))
    except (PydanticUserError, TypeError) as error:
        raise InvalidArgument(f"{who}: bodies cannot become {annotation!r}: {str(error).splitlines()[0]}") from None
    return lambda message: _validated(adapter, message, annotation)


def _text(message: Values) -> str:
    try:
        return message.body.decode()
    except UnicodeDecodeError as error:
        raise InvalidBody(f"the body is no UTF-8 text: {error.reason} at byte {error.start}") from None


def _plain(message: Values) -> object:
    if (message.content_type or "").partition(";")[0].strip().lower() != JSON:
        return message.body
    try:
        return orjson.loads(message.body)
    except orjson.JSONDecodeError as error:
        raise InvalidBody(f"the body is no JSON: {error}") from None


def _validated(adapter: Any, message: Values, annotation: object) -> object:
    from pydantic import ValidationError

    try:
        return adapter.validate_json(message.body)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False)
        told = [f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in mistakes[:SHOWN]]
        more = [f"{len(mistakes) - SHOWN} more"] if len(mistakes) > SHOWN else []
        name = getattr(annotation, "__name__", None) or str(annotation)
        raise InvalidBody(f"the body is no {name}: {'; '.join(told + more)}") from None
