"""What may change in a pipeline that goes on from its checkpoint, and the user's code; without Spark running."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import PenstockError, SettingsError
from penstock.spark.checkpoint import Manifest, remembered
from penstock.spark.pipelines import code

SUMS = """\
~Project [k#6L, n#7L]
+- ~Aggregate [(id#1L % cast(3 as bigint))], [(id#1L % 3) AS k#6L, count(1) AS n#7L]
   +- ~SubqueryAlias input
      +- View (`input`, [id#1L])
         +- ~CollectMetrics expect, [count(1) AS rows#2L], 0
            +- ~EventTimeWatermark ba48163f-32d5-4f8f-805b-92ead5b66f5c, at#48: timestamp, 10 seconds
               +- ~StreamingRelationV2 org.x.Python@1913d937, penstock, [url=x, maxRowsPerTrigger=7], [id#1L]
"""
JOIN = """\
~Join LeftOuter, (a#1 = b#2)
:- ~Filter isnotnull(a#1)
:  +- ~StreamingRelationV2 x, [a#1]
+- {0}SubqueryAlias planes
   +- {0}Relation [b#2] csv
"""


def test_only_what_remembers_and_what_is_below_it_counts() -> None:
    lines = remembered(SUMS)
    assert lines == (
        "~Aggregate [(id % cast(3 as bigint))], [(id % 3) AS k, count(1) AS n]",
        "~EventTimeWatermark , at: timestamp, 10 seconds",
        "~StreamingRelationV2",
    )
    again = SUMS.replace("#1L", "#901L").replace("1913d937", "77777777").replace("=7]", "=9]")
    assert remembered(again.replace("~Project [k#6L, n#7L]", "~Project [n#7L]")) == lines
    assert remembered(SUMS.replace("% cast(3", "% cast(4")) != lines
    assert remembered("~Project [a#1]\n+- ~StreamingRelationV2 x, [a#1]") == ()


def test_a_join_remembers_where_both_sides_bring_rows() -> None:
    assert remembered(JOIN.format("")) == ()
    assert len(remembered(JOIN.format("~"))) == 5 - 1


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ({}, {}, None),
        ({}, {"mode": "update", "code": "b"}, None),
        ({}, {"reads": ("topic b",)}, "it reads topic b now, and the checkpoint belongs to topic a"),
        ({}, {"state": ("~Aggregate x",)}, "remembers something between batches now"),
        ({"state": ("~Aggregate x",)}, {}, "remembers nothing between batches any more"),
        ({"state": ("~Limit x",)}, {"state": ("~Limit y",)}, "~Limit y, where the checkpoint has ~Limit x"),
        ({"state": ("~Aggregate x",)}, {"state": ("~Aggregate x",), "mode": "complete"}, "output mode is complete now"),
        ({"state": ("~Aggregate x",)}, {"state": ("~Aggregate x",), "code": "b"}, None),
        ({"state": ("~MapInArrow f",)}, {"state": ("~MapInArrow f",), "code": "b"},
         "Python code"),
        ({"state": ("~Limit x",)}, {"state": ("~Limit x",), "store": "RocksDB"}, "kept in RocksDB now"),
    ],
)  # fmt: skip
def test_what_fits(old: dict[str, object], new: dict[str, object], why: str | None) -> None:
    base = Manifest(("topic a",), {"input": "a INT"}, code="a")
    told = replace(base, **old).misfit(replace(base, **new))  # type: ignore[arg-type]
    assert told == why if why is None else told is not None and why in told


COLUMNS = ", ".join(f"sum(column_{n}) AS total_{n}" for n in range(40))
STEP, BELOW = f"~Aggregate [k], [k, {COLUMNS}]", "~EventTimeWatermark , at: timestamp, 10 seconds"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ((STEP,), (STEP.replace("sum(column_39)", "avg(column_39)"),), ("avg(column_39)", "sum(column_39)")),
        ((STEP,), (f"{STEP}, more",), ("more", "total_39]")),
        ((STEP,), (STEP.replace("sum(column_3)", "max(column_3)"),), ("max(column_3)", "sum(column_3)")),
        ((STEP, BELOW), (STEP, "~Limit 5", BELOW), ("there is ~Limit 5, which the checkpoint does not know", "")),
        ((STEP, BELOW), (STEP, BELOW, STEP), ("there is ~Aggregate [k], [k, sum(column_0)", "does not know")),
        ((STEP, BELOW), (STEP,), ("there is no ~EventTimeWatermark , at: timestamp, 10 seconds any more", "")),
    ],
)
def test_what_is_otherwise_is_shown_and_not_what_is_the_same(
    old: tuple[str, ...], new: tuple[str, ...], words: tuple[str, str]
) -> None:
    told = Manifest(("topic a",), {}, old).misfit(Manifest(("topic a",), {}, new))
    assert told is not None
    now, where, then = told.partition(", where the checkpoint has ")
    assert now.removeprefix("what it remembers between batches is made otherwise now: ") != then
    assert words[0] in now
    assert words[1] in (then if where else now)
    assert len(told) < 500


def test_manifests_come_back_and_others_are_refused(tmp_path: Path) -> None:
    manifest = Manifest(("topic a",), {"input": None, "b": "x INT"}, ("~Limit x",), "update", "", None)
    path = tmp_path / "folder" / "p.json"
    manifest.write(path)
    assert Manifest.read(path) == manifest
    assert Manifest.read(tmp_path / "none.json") is None
    path.write_text('{"digest": "x", "columns": "a INT"}')
    with pytest.raises(ValueError, match="another version"):
        Manifest.read(path)


def test_code_is_read_anew_when_it_or_what_it_uses_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    helper, main = tmp_path / "penstock_helper_x.py", tmp_path / "penstock_main_x.py"
    helper.write_text("N = 1\n\ndef number():\n    return N\n")
    main.write_text("import json\nfrom penstock_helper_x import number\n\ndef f(x):\n    return number() + x\n")
    text = "penstock_main_x:f"
    before = code.watched(text)
    first = code.load(text, "p")
    assert first.function(1) == 2
    seen = code.watched(text)
    assert len(before) == 1
    assert len(seen) == 2
    helper.write_text("N = 5\n\ndef number():\n    return N\n")
    assert code.watched(text) != seen
    second = code.load(text, "p")
    assert (second.function(1), second.digest != first.digest) == (6, True)
    main.write_text("def g(x):\n    return x\n")
    with pytest.raises(
        SettingsError, match="pipeline p: python = 'penstock_main_x:f' cannot be loaded: AttributeError"
    ):
        code.load(text, "p")
    for name in ("penstock_main_x", "penstock_helper_x"):
        sys.modules.pop(name, None)


GOOD = {"main": "from {helper} import N\n\ndef f(x):\n    return N + x\n", "helper": "N = 1\n"}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Names of modules that no other test has; their files lie in `tmp_path`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {one: f"{tmp_path.name}_{one}" for one in GOOD}
    yield names
    for name in names.values():
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("main", "def f(:\n    pass\n", "SyntaxError: invalid syntax ({main}.py, line 1)"),
        ("main", "import {helper}\n", "AttributeError: module '{main}' has no attribute 'f'"),
        ("main", "f = 3\n", "TypeError: f is no function, but of type int"),
        ("helper", "N = (1\n", "SyntaxError: '(' was never closed ({helper}.py, line 1)"),
        ("helper", "\nN = 1 / 0\n", "ZeroDivisionError: division by zero ({helper}.py, line 2)"),
        ("helper", "import sys\nsys.exit('no config')\n", "SystemExit: no config ({helper}.py, line 2)"),
        ("helper", None, "ModuleNotFoundError: No module named '{helper}' ({main}.py, line 1)"),
        ("main", None, "ModuleNotFoundError: No module named '{main}'"),
    ],
)
def test_code_that_cannot_be_loaded_is_told_with_its_place_and_loaded_when_it_has_changed(
    tmp_path: Path, modules: dict[str, str], file: str, text: str | None, told: str
) -> None:
    for name, good in GOOD.items():
        if (here := text if name == file else good) is not None:
            (tmp_path / f"{modules[name]}.py").write_text(here.format_map(modules))
    target = f"{modules['main']}:f"
    said = f"pipeline p: python = {target!r} cannot be loaded: {told.format_map(modules)}"
    for _ in range(2):
        with pytest.raises(SettingsError, match=f"^{re.escape(said)}$"):
            code.load(target, "p")
    seen = code.watched(target)
    (tmp_path / f"{modules[file]}.py").write_text(GOOD[file].format_map(modules))
    assert code.watched(target) != seen
    assert code.load(target, "p").function(1) == 2
    seen = code.watched(target)
    (tmp_path / f"{modules['helper']}.py").write_text("N = 41\n")
    assert code.watched(target) != seen, "of the helper the function has a number alone"
    assert code.load(target, "p").function(1) == 42


def test_a_function_that_a_second_pipeline_lacks_leaves_what_the_first_watches(
    tmp_path: Path, modules: dict[str, str]
) -> None:
    for name, good in GOOD.items():
        (tmp_path / f"{modules[name]}.py").write_text(good.format_map(modules))
    code.load(f"{modules['main']}:f", "p")
    seen = code.watched(f"{modules['main']}:f")
    with pytest.raises(SettingsError, match="has no attribute 'g'$"):
        code.load(f"{modules['main']}:g", "q")
    assert code.watched(f"{modules['main']}:f") == seen
    assert len(seen) == 2


def test_what_a_function_raises_is_told_with_its_place(tmp_path: Path, modules: dict[str, str]) -> None:
    main = modules["main"]
    (tmp_path / f"{main}.py").write_text(
        "import sys\n\ndef no(x):\n    raise RuntimeError('no\\nway')\n\ndef leave(x):\n    sys.exit(x)\n"
    )
    for name, told in (("no", "RuntimeError: no way ({}.py, line 4)"), ("leave", "SystemExit: 3 ({}.py, line 7)")):
        with pytest.raises(PenstockError, match=f"^{re.escape('pipeline p: ' + told.format(main))}$"):
            code.load(f"{main}:{name}", "p").called("pipeline p", 3)
