"""`MODULE:APP` on the command line."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from penstock.errors import InvalidArgument
from penstock.worker.app import App


def load(target: str, folder: Path) -> App:
    """The app that a target names; modules are looked for in `folder` first.  InvalidArgument says what is wrong.

    What the module itself raises when it is imported is raised.
    """
    module_name, colon, name = target.partition(":")
    if not module_name or not colon or not name:
        raise InvalidArgument(f"{target!r} is no MODULE:APP, such as shop.workers:app")
    if module_name.endswith(".py"):
        raise InvalidArgument(f"{module_name!r} is a file: name the module, {module_name.removesuffix('.py')!r}")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports what is not
        raise InvalidArgument(
            f"no module {module_name!r}: it was looked for in {folder} and where Python looks"
        ) from None
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, App):
        return found
    apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
    there = f"; it has {', '.join(apps)}" if apps else ""
    if found is None:
        raise InvalidArgument(f"{module_name} has no {name!r}{there}")
    raise InvalidArgument(f"{target} is a {type(found).__name__}, not a penstock.App{there}")
