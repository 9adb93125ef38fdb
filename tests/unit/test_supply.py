"""What development and build machines install: exact versions with hashes, for everything that the project asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "tools" / "requirements.lock"

FAULTY = {
    "cryptography": "46.0.4",
    "h11": "0.15.0",
    "orjson": "3.11.4",
    "protobuf": "6.33.4",
    "pyarrow": "23.0.0",
    "starlette": "0.49.0",
}
"""The last releases with a known fault that strangers could use."""


def locked() -> list[tuple[Requirement, int]]:
    """Each line of the lock and how many hashes it has."""
    entries = LOCK.read_text().replace("\\\n", " ").splitlines()
    return [(Requirement(one.split("--hash")[0].strip()), one.count("--hash=sha256:")) for one in entries if one]


def asked() -> list[Requirement]:
    """What the project needs, with what it needs for development."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(one for some in project["optional-dependencies"].values() for one in some)]
    return [one for one in map(Requirement, texts) if one.name != "penstock"]


def name(requirement: Requirement) -> str:
    return re.sub(r"[-_.]+", "-", requirement.name).lower()


def test_the_lock_names_versions_and_hashes_and_no_place() -> None:
    assert len(locked()) > 50
    for one, hashes in locked():
        assert re.fullmatch(r"==[\w.+]+", str(one.specifier)), one
        assert hashes > 0, one
    assert not re.search(r"://|--(extra-)?index|--find-links", LOCK.read_text())


@pytest.mark.parametrize("python", ["3.11.7", "3.12.1", "3.13.1"])
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
        if wanted.name != "opentelemetry-api":  # an extra that development does without
            assert wanted.specifier.contains(there[name(wanted)], prereleases=True), wanted


@pytest.mark.parametrize(("package", "version"), FAULTY.items())
def test_no_bound_admits_a_known_fault(package: str, version: str) -> None:
    bounds = [one.specifier for one in asked() if name(one) == package]
    assert bounds
    assert not any(one.contains(Version(version)) for one in bounds)
