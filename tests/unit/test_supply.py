"""What development and build machines install: exact versions with hashes, for everything that the project asks for."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
LOCK = TOOLS / "requirements.lock"
LOCKS = sorted(TOOLS.glob("*.lock"))

FAULTY = {
    "cryptography": "46.0.4",
    "h11": "0.15.0",
    "orjson": "3.11.4",
    "protobuf": "6.33.4",
    "pyarrow": "23.0.0",
    "starlette": "0.49.0",
}
"""The last releases with a known fault that strangers could use."""


def locked(lock: Path = LOCK) -> list[tuple[Requirement, int]]:
    """Each line of a lock and how many hashes it has."""
    entries = lock.read_text().replace("\\\n", " ").splitlines()
    return [(Requirement(one.split("--hash")[0].strip()), one.count("--hash=sha256:")) for one in entries if one]


def asked() -> list[Requirement]:
    """What the project needs, with what it needs for development."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(one for some in project["optional-dependencies"].values() for one in some)]
    return [one for one in map(Requirement, texts) if one.name != "penstock"]


def name(requirement: Requirement) -> str:
    return re.sub(r"[-_.]+", "-", requirement.name).lower()


def tool(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return import_module(name)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_names_versions_and_hashes_and_no_place(lock: Path) -> None:
    assert len(locked(lock)) > (50 if lock == LOCK else 1)
    for one, hashes in locked(lock):
        assert re.fullmatch(r"==[\w.+]+", str(one.specifier)), one
        assert hashes > 0, one
    assert not re.search(r"://|--(extra-)?index|--find-links", lock.read_text())


def test_whatever_is_installed_comes_by_a_lock() -> None:
    """But for our own package, which brings nothing more."""
    installs = [
        line
        for script in TOOLS.iterdir()
        if script.is_file() and script.suffix != ".lock"
        for line in script.read_text().splitlines()
        if re.search(r"\bpip\b.*\binstall\b", line)
    ]
    assert len(installs) >= 4
    assert [line for line in installs if "--require-hashes" not in line and "--no-deps --editable ." not in line] == []


@pytest.mark.parametrize("python", ["3.11.7", "3.12.1", "3.13.1", "3.14.0"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_lock_has_what_the_project_asks_for(python: str, machine: str) -> None:
    here = dict(default_environment()) | {
        "python_full_version": python, "python_version": python.rpartition(".")[0], "platform_machine": machine,
        "sys_platform": "linux",
    }  # fmt: skip
    there = {
        name(one): str(one.specifier).removeprefix("==")
        for one, _ in locked()
        if one.marker is None or one.marker.evaluate(here)
    }
    for wanted in asked():
        if wanted.name != "faststream":  # an extra that has a lock of its own, tools/frameworks.lock
            assert wanted.specifier.contains(there[name(wanted)], prereleases=True), wanted


@pytest.mark.parametrize(("package", "version"), FAULTY.items())
def test_no_bound_admits_a_known_fault(package: str, version: str) -> None:
    bounds = [one.specifier for one in asked() if name(one) == package]
    assert bounds
    assert not any(one.contains(Version(version)) for one in bounds)


# -- the audit


def found(*packages: dict[str, object]) -> str:
    return json.dumps({"dependencies": list(packages), "fixes": []})


GOOD = {"name": "lark", "version": "1.3.1", "vulns": []}
BAD = {
    "name": "h11",
    "version": "0.15.0",
    "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-2025-1"], "fix_versions": ["0.16.0"], "description": "long"}],
}
SKIPPED = {"name": "rich", "skip_reason": "Dependency not found and could not be audited: rich (15.0.0)"}


@pytest.mark.parametrize(
    ("said", "status", "told"),
    [
        (found(GOOD), 0, "1 of 1 packages looked up, 0 known faults"),
        (found(GOOD, BAD), 1, "h11 0.15.0: PYSEC-1, CVE-2025-1; mended in 0.16.0"),
        (found(GOOD, BAD, SKIPPED), 1, "1 of 3: rich"),
        (found(GOOD, SKIPPED), 3, "COULD NOT BE CHECKED: 1 of 2: rich"),
        (found(SKIPPED, SKIPPED), 3, "0 of 2 packages looked up"),
        (found(), 3, "0 of 0 packages looked up"),
        ("", 3, "COULD NOT BE CHECKED: no route to host"),
        ('{"what": 1}', 3, "COULD NOT BE CHECKED: no route to host"),
    ],
)
def test_what_nobody_could_look_up_is_not_called_sound(
    said: str, status: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = tool("audit", monkeypatch).judge("a.lock", said, "a\nno route to host\n")
    assert verdict.status == status
    assert any(told in line for line in verdict.lines), verdict.lines


def test_a_known_fault_outweighs_what_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = tool("audit", monkeypatch)
    verdicts = [audit.Verdict([], status) for status in (0, 3, 1)]
    assert [audit.worst(verdicts[:count]) for count in (1, 2, 3)] == [0, 3, 1]
    assert set(audit.LOCKS) == {lock.name for lock in LOCKS}


def test_an_audit_that_cannot_be_installed_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = tool("audit", monkeypatch)
    monkeypatch.setattr(audit, "prepare", lambda: "no network")
    assert audit.main() == 3
    said = capsys.readouterr().out
    assert said.count("COULD NOT BE CHECKED: pip-audit: no network") == len(LOCKS)
    assert "NOT DONE" in said


# -- the bill of materials


def test_the_bill_has_what_the_wheel_brings_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    bill = tool("sbom", monkeypatch).document(datetime(2026, 11, 20, tzinfo=UTC))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["timestamp"] == "2026-11-20T00:00:00Z"
    parts = {one["name"]: one for one in bill["components"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {name(Requirement(text)) for text in project["dependencies"]}
    more = {name(Requirement(text)) for some in ("sql", "spark") for text in project["optional-dependencies"][some]}
    assert needed <= {part for part, one in parts.items() if one["scope"] == "required"}
    assert more - needed <= {part for part, one in parts.items() if one["scope"] == "optional"}
    assert not parts.keys() & {"pytest", "hypothesis", "mypy", "ruff", "penstock"}
    lock = {
        name(one): (str(one.specifier).removeprefix("=="), hashes)
        for one, hashes in locked()
        if one.marker is None or one.marker.evaluate()
    }
    for part, one in parts.items():
        assert (one["version"], len(one["properties"])) == lock[part]
        assert one["purl"] == one["bom-ref"] == f"pkg:pypi/{part}@{one['version']}"
        assert one["licenses"], part
    named = {one["bom-ref"] for one in (*bill["components"], bill["metadata"]["component"])}
    told = [one["ref"] for one in bill["dependencies"]]
    assert len(told) == len(set(told))
    assert set(told) == named
    assert {need for one in bill["dependencies"] for need in one["dependsOn"]} <= named


def test_equal_locks_give_equal_bills(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sbom = tool("sbom", monkeypatch)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1763596800")
    for target in ("a", "b"):
        monkeypatch.setattr(sys, "argv", ["sbom", str(tmp_path / target)])
        assert sbom.main() == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
