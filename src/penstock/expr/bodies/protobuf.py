"""Protocol Buffers: fields by their names in the `.proto` file; what JSON has not is told in text, as of MessagePack.

A field that is absent is not there where it could have been said (messages, `optional`, `oneof`), and else has its
default.  Enums are their names, or numbers that have none.  Google's well-known types are what protobuf's own mapping
to JSON makes of them: a Timestamp is ISO 8601, a Struct an object; where files say otherwise what these are, theirs are
read by their fields as all others.

protobuf's parser bounds how deep a body is nested.  How much a few bytes may become is bounded here (`VALUES_MOST`).
"""

from __future__ import annotations

# what a pool gives has no types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, cast

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    field_mask_pb2,
    json_format,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Error

from penstock.expr.bodies.body_type import Reading, Whole
from penstock.expr.values import from_bytes
from penstock.records.message_types import BARE, PREFIX, Schemas, unregistered

VALUES_MOST = 1_000_000
"""Values of one body."""

PLACES_MOST = 100
"""Levels of messages within messages that a body may name: protobuf reads no files with more."""

Told = Callable[[Any], object]

_WELL_KNOWN = "google.protobuf."
_WRAPPERS = wrappers_pb2.DESCRIPTOR
_SPECIAL = (
    any_pb2.DESCRIPTOR, duration_pb2.DESCRIPTOR, field_mask_pb2.DESCRIPTOR, struct_pb2.DESCRIPTOR,
    timestamp_pb2.DESCRIPTOR, _WRAPPERS,
)  # fmt: skip
"""Files of messages that the mapping to JSON has rules of their own for, by their names."""

_WRAPPED = frozenset(_WELL_KNOWN + name for name in _WRAPPERS.message_types_by_name)
"""Messages of one value, which is told as a field of its type is: 64 bits as a number, where the mapping has a text."""

_MAPPED = frozenset(_WELL_KNOWN + name for file in _SPECIAL for name in file.message_types_by_name)


def protobuf_reading(schemas: Schemas) -> Reading:
    """What reads bodies of these messages.  ValueError for files that are none, or lack the message."""
    read = {number: _Messages(*cast("tuple[str, str]", pair)) for number, pair in schemas.by_id.items()}
    bare = read.get(BARE)

    def reading(body: Whole) -> object:
        if bare is not None:
            return bare.read(body, bare.wanted)
        number = schemas.id_of(body)
        if number not in read:
            raise unregistered(number)
        found, at = read[number], PREFIX
        if schemas.header is not None:  # the body is the message that the type names
            return found.read(body[at:], found.wanted)
        places, at = _places(body, at)
        return found.read(body[at:], found.at(places))

    return reading


def _places(body: bytes, at: int) -> tuple[list[int], int]:
    """Which message of its file a body behind an id is: indexes, each within the one before; and where it begins."""
    count, at = _zigzag(body, at)
    if not 0 <= count <= PLACES_MOST:
        raise ValueError(f"it says that it is a message {count} levels deep, at most {PLACES_MOST} are read")
    places = list[int]()
    for _ in range(count):
        place, at = _zigzag(body, at)
        places.append(place)
    return places or [0], at


def _zigzag(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(body) or shift > 35:
            raise ValueError("it does not say which message it is")
        value |= (body[at] & 0x7F) << shift
        shift += 7
        at += 1
        if body[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at


class _Budget:
    """How many values a body may still have."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = VALUES_MOST

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise ValueError(f"it has more than {VALUES_MOST} values")


class _Plan:
    """How a message is told."""

    __slots__ = ("absent", "told")

    def __init__(self, about: Descriptor) -> None:
        self.told = {field.name: _told(field) for field in about.fields}
        self.absent: dict[str, object] = {}  # what it has where a body says nothing
        for field in about.fields:
            if field.is_repeated:
                entry = field.message_type is not None and field.message_type.GetOptions().map_entry
                self.absent[field.name] = {} if entry else []
            elif not field.has_presence:
                told, value = self.told[field.name], field.default_value
                self.absent[field.name] = value if told is None else told(value)


class _Messages:
    """The messages of some files."""

    def __init__(self, files: str, name: str) -> None:
        pool = descriptor_pool.DescriptorPool()
        try:
            some = descriptor_pb2.FileDescriptorSet.FromString(b64decode(files))
            for file in _in_order({one.name: one for one in some.file}):
                pool.Add(file)
            self.wanted: Descriptor = pool.FindMessageTypeByName(name)
        except (DecodeError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"no message {name[:60]!r} in these files: {str(error)[:200]}") from None
        self._mapped = _googles_own(pool)
        self._classes: dict[str, Any] = {}
        self._plans: dict[str, _Plan] = {}

    def at(self, places: list[int]) -> Descriptor:
        """The message at these indexes of the file that has the wanted one."""
        found: Any = None
        for place in places:
            some = list(self.wanted.file.message_types_by_name.values()) if found is None else found.nested_types
            if not 0 <= place < len(some):
                raise ValueError("its file has no such message")
            found = some[place]
        return cast("Descriptor", found)

    def read(self, body: bytes, wanted: Descriptor) -> object:
        made = self._classes.get(wanted.full_name)
        if made is None:
            made = self._classes[wanted.full_name] = message_factory.GetMessageClass(wanted)
        try:
            return self._plain(made.FromString(body), wanted, _Budget())
        except (Error, json_format.Error, UnicodeDecodeError, OverflowError, RecursionError) as error:
            raise ValueError(str(error) or type(error).__name__) from None

    def _plain(self, message: Any, about: Descriptor, budget: _Budget) -> object:
        if self._mapped and about.full_name in _WRAPPED:
            budget.take(1)
            told = _told(about.fields_by_name["value"])
            return message.value if told is None else told(message.value)
        if self._mapped and about.full_name in _MAPPED:
            budget.take(message.ByteSize())
            try:
                return json_format.MessageToDict(message, preserving_proto_field_name=True)
            except TypeError as error:  # an Any of a type that is not Google's
                raise ValueError(str(error)) from None
        plan = self._plans.get(about.full_name)
        if plan is None:
            plan = self._plans[about.full_name] = _Plan(about)
        budget.take(1 + len(plan.told))
        out = dict(plan.absent)
        for field, value in type(message).ListFields(message):  # of the message itself this may be a field
            if field.is_extension:
                continue
            name = field.name
            if field.is_repeated:
                out[name] = self._many(field, value, plan.told[name], budget)
            elif field.message_type is not None:
                out[name] = self._plain(value, field.message_type, budget)
            else:
                told = plan.told[name]
                out[name] = value if told is None else told(value)
        return out

    def _many(self, field: FieldDescriptor, values: Any, told: Told | None, budget: _Budget) -> object:
        budget.take(len(values))
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            field = inner.fields_by_name["value"]
            told, inner = _told(field), field.message_type
            if inner is not None:
                return {_name(key): self._plain(values[key], inner, budget) for key in values}
            return {_name(key): values[key] if told is None else told(values[key]) for key in values}
        if inner is not None:
            return [self._plain(one, inner, budget) for one in values]
        return list(values) if told is None else [told(one) for one in values]


def _googles_own(pool: Any) -> bool:
    """Whether what has a name of Google's here has its fields: else the mapping to JSON asks for fields it has not."""
    for file in _SPECIAL:
        for name, ours in file.message_types_by_name.items():
            try:
                theirs = pool.FindMessageTypeByName(_WELL_KNOWN + name)
            except KeyError:
                continue
            if _shape(theirs) != _shape(ours):
                return False
    try:
        wrappers = pool.FindFileByName(_WRAPPERS.name)  # which are known by their file
    except KeyError:
        return True
    return wrappers.package == _WRAPPERS.package and set(wrappers.message_types_by_name) <= set(
        _WRAPPERS.message_types_by_name
    )


def _shape(message: Descriptor) -> object:
    """Its fields, and those of what it has within."""
    fields = {
        one.name: (one.number, one.type, one.is_repeated, one.message_type and one.message_type.full_name)
        for one in message.fields
    }
    return fields, message.GetOptions().map_entry, {one.name: _shape(one) for one in message.nested_types}


def _told(field: FieldDescriptor) -> Told | None:
    """How one value of a field is told; None: as it is."""
    if field.type == FieldDescriptor.TYPE_STRING:
        return _text
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda one: b64encode(one).decode()
    if field.type == FieldDescriptor.TYPE_ENUM:
        numbers: Any = field.enum_type
        names = {number: one.name for number, one in numbers.values_by_number.items()}
        return lambda one: names.get(one, one)
    return None


def _text(value: str | bytes) -> str:
    """A text; of files that do not ask for UTF-8 one that is none comes as its bytes."""
    return from_bytes(value) if isinstance(value, bytes) else value


def _name(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _in_order(files: Mapping[str, Any]) -> list[Any]:
    """Files behind those that they import; Google's own, where they are not among them, are ours."""
    out: dict[str, Any] = {}
    todo = [(name, False) for name in reversed(list(files))]
    while todo:
        name, opened = todo.pop()
        if name in out:
            continue
        file = files.get(name)
        if file is None:
            file = descriptor_pb2.FileDescriptorProto()
            descriptor_pool.Default().FindFileByName(name).CopyToProto(file)
        if opened or not file.dependency:
            out[name] = file
            continue
        todo.append((name, True))
        todo += [(one, False) for one in file.dependency if one not in out]
        if len(todo) > 10_000:
            raise ValueError("files that import each other")
    return list(out.values())
