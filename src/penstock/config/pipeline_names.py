"""Names that pipelines and views on Spark would share: of streams on the server, and of files beside checkpoints.

A pipeline `p` over several inputs has the streams `p.a`, `p.b`; its backfills are `p.backfill.<id>`, and beside its
checkpoint `p` lie `p.json`, `p.lock` and others.  A pipeline that is called so itself would share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.config.pipeline_inputs import ONLY
from penstock.config.pipelines import Pipeline
from penstock.config.views import ViewSection

FILES = ("json", "lock", "anew", "places", "handover", "forgotten", "part")
"""What is kept beside a checkpoint, as `<name>.<ending>`."""


def streams_of(pipeline: Pipeline) -> tuple[str, ...]:
    """The names under which the server knows what a pipeline reads, as `Definition.stream_of` has them."""
    if list(pipeline.source) == [ONLY]:
        return (pipeline.name,)
    return tuple(f"{pipeline.name}.{name}" for name, one in pipeline.source.items() if one.is_stream)


def shared_names(pipelines: Sequence[Pipeline], views: Sequence[ViewSection]) -> Iterator[tuple[int, str]]:
    """Places of pipelines whose name cannot be beside another's, and why."""
    taken: dict[str, str] = {}
    for one in pipelines:
        for stream in streams_of(one):
            if stream != one.name:
                taken.setdefault(stream, f"the stream of input {stream[len(one.name) + 1 :]} of pipeline {one.name!r}")
        for ending in FILES:
            taken.setdefault(f"{one.name}.{ending}", f"a file of pipeline {one.name!r}")
    on_spark = [f"view.{one.name}" for one in views if one.engine == "spark"]
    for index, one in enumerate(pipelines):
        what = taken.get(one.name)
        for other in pipelines:
            if one.name.startswith(f"{other.name}.backfill."):
                what = what or f"a backfill of pipeline {other.name!r}"
        for view in on_spark:
            if one.name == view or one.name.startswith(f"{view}."):
                what = what or f"what runs the view {view.removeprefix('view.')!r} on Spark"
        if what is not None:
            yield index, f"{one.name!r} is also the name of {what}: give it another name"
