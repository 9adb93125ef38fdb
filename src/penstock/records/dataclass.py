"""`dataclass` as the standard library has it, with each of its methods made when that is first called.

The standard decorator writes and compiles the text of six methods for each class: 0.35 ms a class, 0.16 s for all
that a server loads, most of which it never makes an instance of.  It knows `frozen`, `slots` and `eq`; type
checkers see the standard decorator.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

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
    made = partial(_on_first_call, cls, frozen=frozen, slots=slots)
    methods: dict[str, object] = {name: made(name) for name in ("__init__", "__repr__")}
    if eq:
        methods["__eq__"] = made("__eq__")
        if unhashed:
            cls.__hash__ = made("__hash__") if frozen else None
    if frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        if slots:  # copies and pickles cannot set fields one by one
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    return cls


def _on_first_call(cls: type[Any], name: str, *, frozen: bool, slots: bool) -> Callable[..., Any]:
    """A method that puts the library's own in its place: that of a class with the same fields."""

    def method(self: Any, *args: Any, **values: Any) -> Any:
        namespace: dict[str, Any] = {"__doc__": cls.__doc__}
        if hasattr(cls, "__post_init__"):
            namespace["__post_init__"] = cls.__post_init__
        ends = sys.is_finalizing()
        if ends:  # the library looks itself up, and names in texts of types, where nothing is any more
            sys.modules.setdefault("dataclasses", dataclasses)
        twin = dataclasses.make_dataclass(
            cls.__name__,
            [(one.name, object if ends else one.type, one) for one in dataclasses.fields(cls)],
            namespace=namespace,
            init=name == "__init__",
            repr=name == "__repr__",
            eq=name in {"__eq__", "__hash__"},
            frozen=frozen,
            slots=slots and name == "__init__",  # which then sets what is no argument to its default
        )
        made = getattr(twin, name)
        made.__qualname__ = f"{cls.__qualname__}.{name}"
        if getattr(cls, name) is method:
            setattr(cls, name, made)
        return made(self, *args, **values)

    return method


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
