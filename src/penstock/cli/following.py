"""What a running `penstock up` takes from its settings file when that has changed: what pipelines are made of.

The server reads its own settings when it starts.  Of `[spark]` everything is taken but the folder of checkpoints, which
people move while nothing runs.
"""

from __future__ import annotations

from typing import Any, cast

TAKEN = ("pipeline", "spark", "view")


def taken(present: Any, given: Any, fresh: Any) -> tuple[Any, list[str]]:
    """The settings in force from now on, and sentences about what of the changes has to wait.

    present: in force so far.  given, fresh: the file as it was read before, and now (`config.settings.Settings`).
    """
    sections = cast("dict[str, object]", cast("Any", type(fresh)).model_fields)
    others = [name for name in sections if name not in TAKEN]
    lines: list[str] = []
    if own_views(fresh) != own_views(given) or any(getattr(fresh, name) != getattr(given, name) for name in others):
        lines.append("settings of the server have changed too; they hold after a restart of penstock up")
    kept = present.spark.checkpoints
    if fresh.spark.checkpoints not in (kept, given.spark.checkpoints):
        lines.append(
            f"[spark] checkpoints is {fresh.spark.checkpoints or 'the default'} now, which holds after a restart of "
            f"penstock up: move what is in {kept or 'the default'} there before it, or pipelines over topics begin anew"
        )
    spark = fresh.spark.model_copy(update={"checkpoints": kept})
    views = (*own_views(present), *(one for one in fresh.view if one.engine == "spark"))
    return present.model_copy(update={"pipeline": fresh.pipeline, "spark": spark, "view": views}), lines


def own_views(settings: Any) -> tuple[Any, ...]:
    """The views that the server computes by itself, which it reads when it starts."""
    return tuple(one for one in settings.view if one.engine == "server")
