"""Queries under which `expect` cannot be exact: those that would not read each row of a checked input once.

Rules count, put aside and refuse rows where tasks read them.  A step of Spark's that stops reading early, or reads its
input again for each part of another one, would leave rows out or meet them twice.  Spark's optimizer says which steps
there are; a shuffle below such a step reads everything once, and ends the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.errors import SettingsError
from penstock.spark.pipelines.checks import OBSERVED
from penstock.spark.pipelines.definition import Definition

SHUFFLES = frozenset(
    {
        "Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark", "RepartitionByExpression", "Repartition",
        "FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "TransformWithState", "TransformWithStateInPySpark",
    }
)  # fmt: skip
"""Steps whose input is read once, whatever reads them."""

Found = tuple[str, str]
"""A checked input, and why not each of its rows is read once."""


def refuse_inexact(session: Any, analyzed: Any, definition: Definition) -> None:
    """SettingsError where a checked input would not be read once.  `analyzed`: the plan, a JVM object."""
    checked = [one.name for one in definition.inputs if one.expect]
    if not checked:
        return
    state = session._jsparkSession.sessionState()
    plan = state.optimizer().execute(analyzed)
    met = set[str]()
    for name, why in visited(session, state.conf(), plan, None, met):
        raise SettingsError(f"pipeline {definition.name}: expect of {name} cannot be exact: {why}")
    for name in checked:
        if name not in met:
            raise SettingsError(
                f"pipeline {definition.name}: expect of {name} would have no rows: no row of {name} can come into the "
                "result, so Spark does not read it"
            )


def visited(session: Any, conf: Any, plan: Any, why: str | None, met: set[str]) -> Iterator[Found]:
    """Checked inputs that a step above reads otherwise than once.  met: takes the checked inputs there are.

    why: what a step above does.
    """
    name = str(plan.nodeName())
    if name == "CollectMetrics" and str(plan.name()).startswith(OBSERVED):
        met.add(str(plan.name()).removeprefix(OBSERVED))
        if why is not None:
            yield str(plan.name()).removeprefix(OBSERVED), why
    if name in SHUFFLES:
        why = None
    elif name in ("LocalLimit", "GlobalLimit"):
        why = "LIMIT stops reading it: take LIMIT out, or put it above a GROUP BY"
    elif name == "Join":
        why = of_join(session, conf, plan) or why
    for child in children(plan):
        yield from visited(session, conf, child, why, met)


def of_join(session: Any, conf: Any, join: Any) -> str | None:
    """Why a join does not read each of its sides once; None if it does."""
    kind = str(join.joinType())
    condition = join.condition()
    if kind in ("LeftSemi", "LeftAnti") and condition.isEmpty():
        return "a SEMI or ANTI join without a condition reads nothing of it while the other side has no row, or has one"
    if kind not in ("Inner", "Cross"):
        return None
    hints = [join.hint().leftHint(), join.hint().rightHint()]
    said = " ".join(str(one.get()) for one in hints if one.isDefined()).lower()
    equal = session._jvm.org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys.unapply(join).isDefined()
    if "shuffle_replicate_nl" not in said:
        small = min(int(str(side.stats().sizeInBytes())) for side in (join.left(), join.right()))
        if equal or "broadcast" in said or small <= int(conf.autoBroadcastJoinThreshold()):
            return None
    return (
        "it is joined with something large without equal columns, so Spark reads it once for each part of that; "
        "compare columns for equality too, or say that the other side fits into memory: SELECT /*+ BROADCAST(name) */"
    )


def children(plan: Any) -> Sequence[Any]:
    """Of a node of the JVM."""
    found = plan.children()
    return [found.apply(place) for place in range(found.size())]
