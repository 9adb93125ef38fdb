"""What the documents name exists: files of the rule table, commands of the Makefile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/actions.md",
    "docs/amps.md",
    "docs/archive.md",
    "docs/entitlements.md",
    "docs/durability.md",
    "docs/expressions.md",
    "docs/backup.md",
    "docs/client.md",
    "docs/cluster.md",
    "docs/limits-and-rings.md",
    "docs/massive-queues.md",
    "docs/pipelines.md",
    "docs/replay.md",
    "docs/retention.md",
    "docs/security.md",
    "docs/settling.md",
    "docs/sow.md",
    "docs/tls.md",
    "docs/spark.md",
    "docs/pipelines.md",
    "docs/views.md",
)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    named = set(re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w./-]+)`", text))
    named |= {name for name in re.findall(r"\]\(([\w./-]+)\)", text) if not name.startswith("http")}
    missing = sorted(
        name for name in named if not ((ROOT / document).parent / name).exists() and not (ROOT / name).exists()
    )
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_that_a_document_names_exists(document: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([\w-]+)`", (ROOT / document).read_text()))
    assert named <= targets
