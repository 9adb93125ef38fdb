"""What the documents name exists: files, anchors, commands of the Makefile; and each is as long as it should be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.config.load import load_text

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(str(one.relative_to(ROOT)) for one in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
LINES = {"ARCHITECTURE.md": 160, "CHANGELOG.md": 120, "README.md": 200}
"""Documents that are read in one sitting, and how many lines that is."""


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


@pytest.mark.parametrize("document", LINES)
def test_what_is_read_in_one_sitting_stays_so(document: str) -> None:
    assert len((ROOT / document).read_text().splitlines()) <= LINES[document]


def test_every_guide_is_in_the_index() -> None:
    named = set(re.findall(r"\]\(([\w./-]+\.md)", (ROOT / "docs/index.md").read_text()))
    there = {str(one.relative_to(ROOT / "docs")) for one in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    assert there <= named


@pytest.mark.parametrize("document", DOCUMENTS)
def test_settings_in_a_document_are_settings(document: str) -> None:
    for block in re.findall(r"^```toml\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL):
        load_text(block, source=document)


def test_the_page_of_settings_is_what_the_code_says() -> None:
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    made = subprocess.run([sys.executable, ROOT / "tools/settings_page.py", "--check"], check=False, env=here)
    assert made.returncode == 0, "run tools/settings_page.py"
