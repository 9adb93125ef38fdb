"""A fault planted at any call of the product: the exception, and the profile function that raises it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_GENERATOR
from types import FrameType


class Fault(Exception):
    """One that nobody expects."""


class Planted(Exception):
    """The fault."""


def _finalizes(frame: FrameType | None) -> bool:
    """Whether a call belongs to a finalizer: it comes at any moment, and nobody hears of what fails in it."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


class Plant:
    """Raises once, at the call that has a number."""

    def __init__(
        self, at: int, within: str | tuple[str, ...], counts: Callable[[FrameType], bool] = lambda _: True,
        first: str = "",
    ) -> None:  # fmt: skip
        """at: the number of the call; 0: the first one of the module `first`.

        within: what the names of modules begin with whose calls are counted.  counts: whether one of these is.
        """
        self.calls, self.at, self.hit = 0, at, ""
        self._within, self._counts, self._first = within, counts, first

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """As `sys.setprofile` has it."""
        if event != "call" or self.hit:
            return
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(self._within):
            return
        if frame.f_code.co_flags & CO_GENERATOR or not self._counts(frame):  # some are entered to be closed
            return
        self.calls += 1
        if self.calls == self.at and _finalizes(frame):
            self.at += 1
        elif self.calls == self.at or (not self.at and name == self._first):
            self.hit = f"{name}:{frame.f_code.co_qualname}"
            raise Planted(self.hit)

    @contextmanager
    def there(self) -> Iterator[None]:
        """What is done inside meets it."""
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
