"""Settings of a queue as programs read them: durations with their unit, each with where it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.config.queue_settings import QUEUE_KEYS
from penstock.config.queue_values import written

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.view import Queue


def settings_in_force(core: Core, queue: Queue) -> dict[str, dict[str, object]]:
    """Those that are not the default: `value`, and `from`, which is `argument` or names what rules."""
    return {
        key: {"value": written(QUEUE_KEYS[key], getattr(queue.settings, key), "python"), "from": source}
        for key, source in core.sources(queue).items()
        if source != "default"
    }
