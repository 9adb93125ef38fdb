"""Asks whether what the locks name has known faults: `make audit`, or `.venv/bin/python tools/audit.py`.

pip-audit does the asking, from a folder of its own (`.venv-audit`, made from `tools/audit.lock`), so that it is not
among what it looks at.  It calls a package that its index does not know "skipped" and still ends well; here nothing
counts as sound that nobody could look up.

Exit status: 0 all was looked up, nothing is known; 1 something is; 3 nothing is known of what could be looked up, and
some or all could not: no network, or an index that tells no faults.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("requirements.lock", "older-spark.lock", "frameworks.lock", "suites.lock", "audit.lock")
FOLDER = ROOT / ".venv-audit"
SOUND, FAULTY, UNKNOWN = 0, 1, 3

LIMIT_S = 600
"""What hangs has no answer."""


class Verdict(NamedTuple):
    """Of one lock: what to say, and the exit status."""

    lines: list[str]
    status: int


def judge(lock: str, said: str, problem: str = "") -> Verdict:
    """What pip-audit's JSON means; `problem`: the end of what it wrote beside that."""
    try:
        packages: list[dict[str, Any]] = json.loads(said)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = problem.strip().splitlines()[-1:] or ["no answer"]
        return Verdict([f"{lock}: COULD NOT BE CHECKED: {reason[0][:300]}"], UNKNOWN)
    lines, skipped, faulty = list[str](), list[str](), 0
    for one in packages:
        if "skip_reason" in one:
            skipped.append(str(one["name"]))
            continue
        for fault in one.get("vulns", ()):
            faulty += 1
            mended = ", ".join(fault.get("fix_versions") or ()) or "no release yet"
            names = ", ".join((fault["id"], *fault.get("aliases", ())))
            lines.append(f"{lock}: {one['name']} {one['version']}: {names}; mended in {mended}")
    checked = len(packages) - len(skipped)
    if skipped:
        names = ": " + ", ".join(sorted(skipped)) if checked else ""
        lines.append(f"{lock}: COULD NOT BE CHECKED: {len(skipped)} of {len(packages)}{names}")
    lines.append(f"{lock}: {checked} of {len(packages)} packages looked up, {faulty} known faults")
    return Verdict(lines, FAULTY if faulty else UNKNOWN if skipped or not checked else SOUND)


def worst(verdicts: list[Verdict]) -> int:
    """A known fault outweighs what nobody knows."""
    found = {one.status for one in verdicts}
    return FAULTY if FAULTY in found else UNKNOWN if UNKNOWN in found else SOUND


def prepare() -> str:
    """Make pip-audit's folder; why that is not possible, or nothing."""
    python, stamp, lock = FOLDER / "bin" / "python", FOLDER / ".installed", ROOT / "tools" / "audit.lock"
    if stamp.exists() and stamp.stat().st_mtime >= lock.stat().st_mtime:
        return ""
    install = (python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--require-hashes", "-r", lock)
    for command in ((sys.executable, "-m", "venv", "--clear", FOLDER), install):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["it cannot be installed"])[-1]
    stamp.touch()
    return ""


def ask(lock: str) -> Verdict:
    """Have one lock looked up."""
    command = [
        str(FOLDER / "bin" / "pip-audit"), "--requirement", str(ROOT / "tools" / lock), "--require-hashes",
        "--disable-pip", "--format", "json", "--progress-spinner", "off",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return judge(lock, "", f"no answer within {LIMIT_S} s")
    return judge(lock, done.stdout, done.stderr)


def main() -> int:
    """All locks."""
    why = prepare()
    verdicts = [judge(lock, "", f"pip-audit: {why}") if why else ask(lock) for lock in LOCKS]
    for line in (line for one in verdicts for line in one.lines):
        sys.stdout.write(f"audit: {line}\n")
    status = worst(verdicts)
    if status == UNKNOWN:
        sys.stdout.write("audit: NOT DONE: run it where the index of the packages tells known faults\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
