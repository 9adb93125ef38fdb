"""`dataclass` as the standard library has it, with its methods made when they are first needed.

The standard decorator writes and compiles the text of six methods for each class: 0.35 ms a class, a tenth of a second
for those that a server loads, most of which it never makes an instance of.  Here `__init__` is compiled for the first
instance, and the other methods are not compiled at all: they ask for all fields at once.  Fields, slots,
`__match_args__`, `replace`, `fields` and `asdict` are the standard library's own.  It knows `frozen`, `slots` and `eq`;
type checkers see the standard decorator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type[Any] | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True
    ) -> Any:
        """A dataclass, or a decorator that makes one."""
        if cls is None:
            return lambda found: _make(found, frozen=frozen, slots=slots, eq=eq)
        return _make(cls, frozen=frozen, slots=slots, eq=eq)


def _make(plain: type[Any], *, frozen: bool, slots: bool, eq: bool) -> Any:
    own = set(plain.__dict__)
    unhashed = "__hash__" not in own or ("__eq__" in own and plain.__hash__ is None)  # `__eq__` alone sets it to None
    plain.__doc__ = plain.__doc__ or plain.__name__  # without one the library works a signature out: 0.1 ms
    cls: Any = dataclasses.dataclass(plain, init=False, repr=False, eq=False, slots=slots)
    methods: dict[str, object] = {"__init__": _first_init(cls, frozen=frozen), "__repr__": _repr}
    if eq:
        compared = _values_of([one.name for one in dataclasses.fields(cls) if one.compare])
        methods["__eq__"] = _eq(compared)
        if unhashed:
            cls.__hash__ = _hash(compared) if frozen else None
    if frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        if slots:  # copies and pickles cannot set fields one by one
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    return cls


def _first_init(cls: type[Any], *, frozen: bool) -> Callable[..., None]:
    """An `__init__` that puts the compiled one in its place."""

    def __init__(self: Any, *args: Any, **values: Any) -> None:  # noqa: N807 - it is one
        made = _compiled_init(cls, frozen=frozen)
        if cls.__init__ is __init__:
            cls.__init__ = made
        made(self, *args, **values)

    return __init__


def _compiled_init(cls: type[Any], *, frozen: bool) -> Callable[..., None]:
    """`__init__` with a parameter for each field, in their order; those that are keywords alone come last."""
    names: dict[str, object] = {"set_": object.__setattr__, "unset": dataclasses.MISSING}
    positional, keywords, body = list[str](), list[str](), list[str]()
    for one in dataclasses.fields(cls):
        value = one.name
        if one.default_factory is not dataclasses.MISSING:
            names[f"make_{one.name}"] = one.default_factory
            value = f"make_{one.name}()"
            if one.init:
                value += f" if {one.name} is unset else {one.name}"
        elif one.default is not dataclasses.MISSING:
            names[f"default_{one.name}"] = one.default
        elif not one.init:
            continue
        if one.init:
            default = ""
            if one.default is not dataclasses.MISSING:
                default = f"=default_{one.name}"
            elif one.default_factory is not dataclasses.MISSING:
                default = "=unset"
            (keywords if one.kw_only else positional).append(one.name + default)
        elif one.default is not dataclasses.MISSING:
            value = f"default_{one.name}"
        body.append(f"set_(self, {one.name!r}, {value})" if frozen else f"self.{one.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(["self", *positional, *(["*", *keywords] if keywords else [])])
    text = f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"])
    exec(text, names)
    made = cast("Callable[..., None]", names["__init__"])
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _values_of(names: list[str]) -> Callable[[Any], Any]:
    """A function that gives the values of so many fields as a tuple."""
    if not names:
        return lambda one: ()
    if len(names) == 1:
        get = attrgetter(names[0])
        return lambda one: (get(one),)
    return attrgetter(*names)


def _eq(values: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def __eq__(self: Any, other: Any) -> Any:  # noqa: N807 - it is one
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(values: Callable[[Any], Any]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:  # noqa: N807 - it is one
        return hash(values(self))

    return __hash__


@recursive_repr()
def _repr(self: Any) -> str:
    shown = [f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr]
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
