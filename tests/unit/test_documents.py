"""What the documents name exists: files, anchors, commands of the Makefile; and each is as long as it should be.

`docs/clients.md` says what the walks beside RabbitMQ let differ, each with its reason.  Pages of proofs name a test for
every sentence of a document: each of them exists, and no row is without one.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from conformance import clients_page
from conformance.clients_page import PAGE, RUNS, differences
from penstock.cli.main import FILES, command
from penstock.config.load import load_text
from penstock.errors import DataFolderInUse, LogDamaged, SettingsError
from penstock.records.kinds import LAZY, SYNCED, Kind
from penstock.server.http import metrics

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(str(one.relative_to(ROOT)) for one in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
SITTING = {"ARCHITECTURE.md": (160, 19_000), "CHANGELOG.md": (120, 13_000), "README.md": (200, 12_000)}
"""Documents that are read in one sitting, and how many lines and characters that is."""


def test_the_image_is_made_of_what_is_here_and_examples_name_it() -> None:
    copied = re.findall(r"/repository/([\w.]+)", (ROOT / "examples" / "Dockerfile").read_text())
    assert copied == ["src", "pyproject.toml", "README.md", "LICENSE"]
    assert all((ROOT / name).exists() for name in copied)
    for file in (ROOT / "examples" / "cluster").iterdir():
        for name in re.findall(r"[\w/]+/Dockerfile", file.read_text()):
            assert (ROOT / name).is_file(), f"{file.name} names {name}"


def test_the_unit_of_systemd_calls_what_there_is_and_comes_again_where_that_helps() -> None:
    unit = (ROOT / "examples" / "penstock.service").read_text()
    [called] = re.findall(r"^ExecStart=\S+/penstock (\S+) (.*)$", unit, re.MULTILINE)
    known = command(None).commands[called[0]].params  # type: ignore[attr-defined]
    options = {option for one in known for option in one.opts}
    assert {word for word in called[1].split() if word.startswith("--")} <= options
    [alone] = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    needs_a_person = (SettingsError, DataFolderInUse, LogDamaged)
    assert {int(one) for one in alone.split()} == {one.exit_status for one in needs_a_person}


def anchors(text: str) -> set[str]:
    """The headings of a page as links name them; the second of a name has `-1` behind it."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found: list[str] = []
    for head in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        bare = re.sub(r"[`*\[]|\]\([^)]*\)", "", head)
        found.append(re.sub(r"[^\w -]", "", bare.lower()).strip().replace(" ", "-"))
    return {name if not (many := found[:at].count(name)) else f"{name}-{many}" for at, name in enumerate(found)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    named = set(re.findall(r"`((?:src|tests|docs|examples|benchmarks|tools)/[\w./-]+)`", text))
    named |= {name for name in re.findall(r"\]\(([\w./-]+)(?:#[^)]*)?\)", text) if not name.startswith("http")}
    missing = sorted(
        name for name in named if not ((ROOT / document).parent / name).exists() and not (ROOT / name).exists()
    )
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_to_a_heading(document: str) -> None:
    here = ROOT / document
    for name, anchor in re.findall(r"\]\(([\w./-]*)#([^)]*)\)", here.read_text()):
        there = here.parent / name if name else here
        assert anchor in anchors(there.read_text()), f"{document}: {name}#{anchor}"


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_room_that_is_named_from_the_package_on_exists(document: str) -> None:
    packages = "|".join(one.name for one in (ROOT / "src/penstock").iterdir() if one.is_dir())
    rooms = rf"`((?:{packages}|operations)/[\w./-]*)`"
    missing = [
        name for name in re.findall(rooms, (ROOT / document).read_text()) if not (ROOT / "src/penstock" / name).exists()
    ]
    assert not missing


def test_every_rule_names_whole_paths() -> None:
    assert re.findall(r"`[\w/]+\.py`", (ROOT / "docs/rules.md").read_text())
    assert not re.findall(r"`(?!src/|tests/)[\w/]+\.py`", (ROOT / "docs/rules.md").read_text())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_that_a_document_names_exists(document: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([\w-]+)`", (ROOT / document).read_text()))
    assert named <= targets


@pytest.mark.parametrize("document", SITTING)
def test_what_is_read_in_one_sitting_stays_so(document: str) -> None:
    text, (lines, characters) = (ROOT / document).read_text(), SITTING[document]
    assert (len(text.splitlines()) <= lines, len(text) <= characters) == (True, True), len(text)


def test_every_guide_is_in_the_index() -> None:
    named = set(re.findall(r"\]\(([\w./-]+\.md)", (ROOT / "docs/index.md").read_text()))
    there = {str(one.relative_to(ROOT / "docs")) for one in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    assert there <= named


@pytest.mark.parametrize("document", DOCUMENTS)
def test_settings_in_a_document_are_settings(document: str) -> None:
    for block in re.findall(r"^```toml\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL):
        load_text(block, source=document)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_counters_in_a_document_are_named_as_they_are_shown(document: str) -> None:
    kinds = [one for one in vars(metrics).values() if isinstance(one, metrics.Things)]
    counters = {one.name for kind in kinds for one in kind.families([], per_object=True) if one.counter}
    named = set(re.findall(r"\b(?:penstock|rabbitmq)_\w+", (ROOT / document).read_text()))
    assert {f"{name}_total" for name in named & counters} == set()


def test_the_page_of_settings_is_what_the_code_says() -> None:
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    made = subprocess.run([sys.executable, ROOT / "tools/settings_page.py", "--check"], check=False, env=here)
    assert made.returncode == 0, "run tools/settings_page.py"


def test_the_page_of_durability_has_every_kind_of_record() -> None:
    page = (ROOT / "docs/durability.md").read_text()
    rows = [line.split("|") for line in page[: page.index("## 2.")].splitlines() if line.startswith("|")]
    named = {name: row[3] for row in rows for name in re.findall(r"`([A-Z_]+)`", row[2])}
    assert set(named) == {kind.name for kind in Kind}
    whatever = {name for name, when in named.items() if "whatever `sync` says" in when}
    assert whatever <= {kind.name for kind in SYNCED}
    assert {kind.name for kind in LAZY} <= {name for name, when in named.items() if not when.startswith(" yes")}


SECTIONS = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE)
"""Keys of the settings file, which are written behind their sections."""


@cache
def names_in(file: Path) -> set[str]:
    """Whatever has a name in a file of Python."""
    found = set[str]()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
            case _:
                pass
    return found


def stands(parts: list[str], here: Path = ROOT / "src/penstock") -> bool:
    """Whether there is what these lead to: rooms, a file, and names in it, or in any file of a room."""
    if not parts:
        return True
    first, *rest = parts
    if (here / first).is_dir():
        return stands(rest, here / first)
    if (here / f"{first}.py").exists():
        return set(rest) <= names_in(here / f"{first}.py")
    return len(parts) == 1 and any(first in names_in(file) for file in here.rglob("*.py"))


def test_what_the_code_names_in_words_is_there() -> None:
    package = ROOT / "src/penstock"
    rooms = "|".join(one.name for one in package.iterdir() if one.is_dir() and one.name != "__pycache__")
    named = re.compile(rf"`(?:penstock\.)?((?:{rooms})(?:\.\w+)+)`(?!`)")  # one backtick before it: below
    dead = [
        f"{file.relative_to(package)}: {name}"
        for file in package.rglob("*.py")
        for text in [file.read_text()]
        for found in named.finditer(text)
        if not text.endswith("`", 0, found.start())
        for name in [found[1]]
        if not stands(parts := name.split(".")) and not (len(parts) == 2 and parts[1] in SECTIONS)
    ]
    assert not dead, "these are nowhere:\n" + "\n".join(sorted(dead))


def test_the_page_of_commands_has_every_family() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    table = "\n".join(re.split(r"(?<!\\)\|", line)[1] for line in page.splitlines() if line.startswith("|"))
    families = {name for names in FILES.values() for name in names.split()}
    assert {name for name in families if not re.search(rf"`{name}[ `]", table)} == set()


def test_the_page_of_clients_has_every_difference() -> None:
    text = PAGE.read_text()
    assert differences() in text
    for run in RUNS:
        assert f"| {run.client} |" in text


def test_the_page_of_clients_is_of_a_whole_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where one failed, was not found, or was skipped for want of a RabbitMQ beside us, it stays as it is."""
    monkeypatch.setattr(clients_page, "PAGE", tmp_path / "clients.md")
    passed = {f"{run.files[0]}[{number}]": "passed" for number, run in enumerate(RUNS)}
    for run in RUNS:
        mine = [name for name in passed if name.startswith(run.files)]
        for outcome in ("failed", *(() if run.lock else ("skipped",))):
            assert not clients_page.write({**passed, **dict.fromkeys(mine, outcome)}, {})
        assert not clients_page.write({name: passed[name] for name in passed if name not in mine}, {})
    assert not clients_page.PAGE.exists()


def test_the_page_of_clients_tells_of_cases_that_were_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(clients_page, "PAGE", tmp_path / "clients.md")
    run = next(one for one in RUNS if one.client == "taskiq")
    monkeypatch.setattr(clients_page, "RUNS", [run])
    outcomes = {f"{run.files[0]}server]": "passed", f"{run.files[0]}rabbitmq]": "skipped"}
    assert clients_page.write(outcomes, {})
    assert "| 1 of 2 |" in clients_page.PAGE.read_text()
    assert clients_page.write(dict.fromkeys(outcomes, "skipped"), {})
    assert "| not run: its packages were not there |" in clients_page.PAGE.read_text()


def test_the_page_of_clients_counts_every_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A case whose value has a slash was none of its test's."""
    monkeypatch.setattr(clients_page, "PAGE", tmp_path / "clients.md")
    run = next(one for one in RUNS if one.client == "promtool")
    monkeypatch.setattr(clients_page, "RUNS", [run])
    cases = [f"tests/conformance/{run.files[0]}[{page}]" for page in ("metrics", "metrics/per-object")]
    assert clients_page.write(dict.fromkeys(cases, "passed"), {})
    assert "| 2 of 2 |" in clients_page.PAGE.read_text()


PAGES = {"amps.md": 190, "limits-and-rings.md": 50, "massive-queues.md": 26}
"""Each page that names a test for every sentence, and how many rows it has at least."""
NAMED = re.compile(r"`(test_[a-z0-9_]+|tests/[\w/]+\.py)`")


def existing() -> set[str]:
    """The names of all test functions, and files of tests by their paths."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found.add(str(path.relative_to(ROOT)))
        found.update(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    return found


def text_of(page: str) -> str:
    """What a page says."""
    return (ROOT / "docs/proofs" / page).read_text(encoding="utf-8")


def rows(page: str) -> list[list[str]]:
    """The rows of the tables whose last column is called `test`."""
    found: list[list[str]] = []
    inside = False
    for line in text_of(page).splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            inside = False
        elif inside and not set("".join(cells)) <= set("-"):
            found.append(cells)
        elif cells[-1] == "test":
            inside = True
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_the_page_names_exists(page: str) -> None:
    assert sorted(set(NAMED.findall(text_of(page))) - existing()) == []


@pytest.mark.parametrize("page", PAGES)
def test_no_sentence_is_without_a_test(page: str) -> None:
    assert len(rows(page)) >= PAGES[page]
    assert [cells for cells in rows(page) if not NAMED.search(cells[-1])] == []
