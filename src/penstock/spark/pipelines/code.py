"""The user's own code: loaded by name, noticed when its files change, and sent to Spark's workers with each query.

Code that lies beside the module is the user's, wherever the function reaches it.  It travels by value: workers need no
copy of it, and never run an old one.

What goes wrong in it, or in Spark, is told in one sentence, without what Spark writes about it by itself.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from penstock.errors import PenstockError, SettingsError
from penstock.records.dataclass import dataclass

Stamp = tuple[tuple[str, int, int], ...]
"""Files with their times and sizes."""

_PACKAGES = [os.path.dirname(str(one.origin)) for one in map(importlib.util.find_spec, ("penstock", "pyspark")) if one]
_LIBRARIES = tuple(f"{Path(path).resolve()}/" for path in (*sysconfig.get_paths().values(), sys.prefix, *_PACKAGES))

_lock = threading.Lock()
_loaded: dict[str, tuple[Stamp, tuple[str, ...]]] = {}
"""By top module: its files when it was imported, and the names of its modules."""


@dataclass(frozen=True, slots=True)
class Code:
    """A function of the user's, and the hash of all code of theirs that it reaches."""

    function: Callable[..., Any]
    digest: str

    def called(self, whose: str, /, *frames: Any, **named: Any) -> Any:
        """What it gives.  What it raises is told with its place in their code, but for what Spark or Penstock says."""
        try:
            return self.function(*frames, **named)
        except (Exception, SystemExit) as error:
            if isinstance(error, PenstockError) or type(error).__module__.startswith(_WRAPPERS):
                raise
            raise PenstockError(f"{whose}: {_told(error)}") from error


def load(text: str, pipeline: str) -> Code:
    """`module:function` of the settings, from the files as they are now.  SettingsError when it is not there."""
    module, _, name = text.partition(":")
    with _lock:
        forget_changed(module)
        before = set(sys.modules)
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
            if not callable(found):
                raise TypeError(f"{name} is no function, but of type {type(found).__name__}")
        except (Exception, SystemExit) as error:  # the user's code may raise whatever it likes when it is imported
            _note(module, [one for one in _new(before) if _is_theirs(one)], _to_mend(error))
            raise SettingsError(f"pipeline {pipeline}: python = {text!r} cannot be loaded: {_told(error)}") from error
        reached = list(own_modules(sys.modules[module]))
        root = _root(sys.modules[module])
        _note(module, [*reached, *(one for one in _new(before) if _is_own(one, root))])
        digest = hashlib.sha256()
        for one in reached:
            _send_by_value(one)
            digest.update(one.__name__.encode() + b"\0" + Path(str(one.__file__)).read_bytes() + b"\0")
        return Code(cast("Callable[..., Any]", found), digest.hexdigest())


def _new(before: set[str]) -> list[ModuleType]:
    """Modules that were imported since."""
    return [one for name, one in list(sys.modules.items()) if name not in before]


def _note(module: str, modules: Sequence[ModuleType], paths: Sequence[str] = ()) -> None:
    """What the next load looks at, beside what is known: these modules, and files, of which some may not be there."""
    files, names = _loaded.pop(module, ((), ()))
    all_paths = {*paths, *(path for path, _, _ in files), *(str(one.__file__) for one in modules)}
    _loaded[module] = (
        tuple(map(_stamped, sorted(all_paths))),
        tuple(sorted({*names, *(one.__name__ for one in modules)})),
    )


def _to_mend(error: BaseException) -> list[str]:
    """Files of the user's whose change may mend this: those that led there, and where a module was looked for."""
    paths = [path for path, _ in _places(error)]
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        paths += _candidates(error.name)
    return [path for path in paths if _is_code(path)]


def _places(error: BaseException) -> Iterator[tuple[str, int]]:
    """Files and lines of what led to an error, the innermost last."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, line
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        yield error.filename, error.lineno


def _told(error: BaseException) -> str:
    """Type and text of an error in one line, and where in the user's code it happened."""
    said = " ".join(f"{type(error).__name__}: {error}".split())[:LENGTH_MAX]
    theirs = [(Path(path).name, line) for path, line in _places(error) if _is_code(path)]
    place = "({}, line {})".format(*theirs[-1]) if theirs else ""
    return said if said.endswith(place) else f"{said} {place}"


def watched(text: str) -> Stamp:
    """What changes when the code behind `module:function` does, be it loaded or not yet there."""
    module = text.partition(":")[0]
    known = _loaded.get(module)
    if known is not None:
        return tuple(_stamped(path) for path, _, _ in known[0])
    return tuple(told for path in _candidates(module) if (told := _stamped(path))[1] >= 0)


def _candidates(module: str) -> list[str]:
    """The files in which a module may be."""
    files = [Path(folder or ".").joinpath(*module.split(".")) for folder in sys.path]
    return [path for file in files for path in (f"{file}.py", f"{file}/__init__.py")]


def forget_changed(module: str) -> None:
    """Let the next import read the files anew, if they are not what was imported."""
    known = _loaded.get(module)
    if known is None or tuple(_stamped(path) for path, _, _ in known[0]) == known[0]:
        return
    for path, _, _ in known[0]:
        # Compiled code is told apart by whole seconds and size, and an edit may keep both.
        Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)
    for name in known[1]:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    del _loaded[module]


def own_modules(module: ModuleType) -> Iterator[ModuleType]:
    """The module and what it reaches beside it, each once, in order of their names."""
    root = _root(module)
    found = {module.__name__: module}
    waiting = [module]
    while waiting:
        for value in list(vars(waiting.pop()).values()):
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            other = sys.modules.get(name) if isinstance(name, str) else None
            if other is not None and other.__name__ not in found and _is_own(other, root):
                found[other.__name__] = other
                waiting.append(other)
    return iter([found[name] for name in sorted(found)])


def _root(module: ModuleType) -> Path:
    """The folder in which its top package or module lies."""
    file = Path(str(module.__file__)).resolve()
    return file.parents[module.__name__.count(".") + (file.name == "__init__.py")]


def _is_own(module: ModuleType, root: Path) -> bool:
    return _is_theirs(module) and Path(str(module.__file__)).resolve().is_relative_to(root)


def _is_theirs(module: ModuleType) -> bool:
    named = getattr(module, "__dict__", {})  # to ask some for what they lack loads what they stand for
    file = named.get("__file__")
    return isinstance(file, str) and _is_code(file) and named.get("__name__") != "__main__"


def _is_code(file: str) -> bool:
    """Whether a file is code of the user's, and of no library."""
    return file.endswith(".py") and not str(Path(file).resolve()).startswith(_LIBRARIES)


def _stamped(path: str) -> tuple[str, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (path, -1, -1)
    return (path, status.st_mtime_ns, status.st_size)


def _send_by_value(module: ModuleType) -> None:
    from pyspark import cloudpickle as untyped

    pickling: Any = untyped
    pickling.register_pickle_by_value(module)


_STATE = re.compile(r"\s*SQLSTATE: \w+\.?")
_CLASS = re.compile(r"^(?:[\w.$]+(?:Exception|Error)): (?=\S)")
_CONDITION = re.compile(r"^\[[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*\] ")
LENGTH_MAX = 500
_NOTHING_SAID = ("at ", "File ", "Traceback", "An error occurred", "An exception was raised by the Python Proxy")
_TRACEBACK = "Traceback (most recent call last):"
_ENDS = re.compile(r"(?:\s*SQLSTATE: |\s+at \S+\(|== |=== |\s*$)")
"""Lines behind a Python exception's own text."""
_CAUSE = "Caused by: "
_VAGUE = frozenset({"Task not serializable", "Python worker failed to connect back"})
"""What says too little without the cause in Java that is told last.  It is the machine that fails, and not a row."""
_WRITING = "Task failed while writing rows to "
"""The same of files, whose folder is told, and a row may be to blame."""
_NO_ROW = ("penstock.errors.", "java.io.", "OSError: [Errno ", "No space left on device", *sorted(_VAGUE))
_WRAPPERS = ("pyspark.", "py4j.")
"""Modules whose exceptions pass on what Java says."""


def short(text: str, stack: str = "") -> str:
    """The sentence that matters of a Spark error.

    Our own last one; else the exception that a function in Python ended with, by its type and text; else the first line
    that is none of a stack.  stack: of Java, whose last cause goes with a line that says too little.
    """
    if said := _told_in_python(text):
        return said
    told = _first_told(text)
    if told.endswith(_TRACEBACK) and (cause := cause_in_python(text) or "").startswith("pyspark."):
        told = _CLASS.sub("", cause)
    plain = _STATE.sub("", _CONDITION.sub("", told)).replace(".;", ";")
    behind = (line.strip() for line in (text + "\n" + stack).splitlines())
    vague = plain.rstrip(" ;.") in _VAGUE or plain.startswith(_WRITING)
    if vague and (causes := [line for line in behind if line.startswith(_CAUSE)]):
        plain = f"{plain.rstrip(' ;.')}: {causes[-1].removeprefix(_CAUSE)}"
    return plain[:LENGTH_MAX].rstrip(" ;")


def _first_told(text: str) -> str:
    """The first line that says something; all of it where none does.

    What is indented is a stack or a plan.  The class goes first: behind it may stand what says nothing.
    """
    lines = text.splitlines()
    flush = [_CLASS.sub("", line.removeprefix(": ")) for line in lines if line[:1].strip()]
    some = flush or [line.strip() for line in lines if line.strip()]
    return next((line for line in some if not line.startswith(_NOTHING_SAID)), text)


def _told_in_python(text: str) -> str | None:
    """Our own last sentence, or the exception that a function in Python ended with; None where Java alone tells."""
    ours = [line for line in map(str.strip, text.splitlines()) if line.startswith("penstock.errors.")]
    if ours:
        return ours[-1].partition(": ")[2]
    cause = cause_in_python(text)
    return None if cause is None or cause.startswith(_WRAPPERS) else cause[:LENGTH_MAX]


def stack_of_java(error: BaseException) -> str | None:
    """All that Java says of an error, with every cause; None where a sentence of ours or of Python says what it is.

    The text of some errors has it, of others only they themselves or what caused them.
    """
    text = str(error)
    if isinstance(error, PenstockError) or _told_in_python(text):
        return None
    cause: Any = getattr(error, "_cause", None)
    told = [text, *(str(getattr(one, "_stackTrace", "")) for one in (error, cause) if one is not None)]
    return "\n".join(dict.fromkeys(one for one in told if one))


def cause_in_python(text: str) -> str | None:
    """Type and text of the exception that the last traceback ends with, in one line; None without a traceback."""
    _, found, rest = text.rpartition(_TRACEBACK)
    if not found:
        return None
    told = list[str]()
    for line in rest.splitlines()[1:]:
        if told and _ENDS.match(line):
            break
        if told or line[:1].strip():  # frames are indented, and what follows them is not
            told.append(line.strip())
    return " ".join(told) or None


def may_be_a_row(text: str) -> bool:
    """Whether a row may be to blame for an error of Spark: not for what Penstock itself or a file system says."""
    return not any(name in text for name in _NO_ROW)


def quieten() -> None:
    """Spark's Python half logs each error as JSON with its stack beside raising it: once is enough."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger("py4j").setLevel(logging.ERROR)
