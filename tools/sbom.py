"""What the wheel brings with it, as CycloneDX: `make sbom`, or `.venv/bin/python tools/sbom.py [FILE]`.

The wheel names ranges; an SBOM names versions.  They are those of `tools/requirements.lock`, with which every test ran,
and so are the digests.  It follows what the wheel asks for itself (scope `required`) and its extras that a server or a
Spark cluster installs (`optional`); tools of development are not in it.  Equal locks give equal files but for the time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import uuid
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution, metadata, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "tools" / "requirements.lock"
WHEEL = "penstock"
EXTRAS = ("sql", "spark", "otel")
NAMESPACE = uuid.UUID("97968000-c4b9-4374-9442-c64ebb8110fc")
"""Of the numbers of these documents: made once, by chance."""


def normal(name: str) -> str:
    """The name of a package as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, tuple[str, list[str]]]:
    """By package: its version, and the SHA-256 of each of its files."""
    found = dict[str, tuple[str, list[str]]]()
    for line in LOCK.read_text().replace("\\\n", " ").splitlines():
        one = Requirement(line.split("--hash")[0].strip())
        if one.marker is None or one.marker.evaluate():
            found[normal(one.name)] = str(one.specifier).removeprefix("=="), re.findall(r"sha256:([0-9a-f]{64})", line)
    return found


def asked(name: str, extras: frozenset[str]) -> list[Requirement]:
    """What a package asks for on this machine, with these of its extras.  Nothing of one that is not installed."""
    try:
        texts = distribution(name).requires or []
    except PackageNotFoundError:
        return []
    wanted = [Requirement(text) for text in texts]
    return [
        one
        for one in wanted
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (extras or {""}))
    ]


def closure(extras: frozenset[str]) -> dict[str, list[str]]:
    """Each package that the wheel brings with these extras, and what that one asks for."""
    graph = dict[str, list[str]]()
    waiting = [(WHEEL, frozenset({"", *extras}))]
    seen = set[tuple[str, frozenset[str]]]()
    while waiting:
        name, some = waiting.pop()
        if (name, some) in seen:
            continue
        seen.add((name, some))
        found = [(normal(one.name), frozenset({"", *one.extras})) for one in asked(name, some)]
        graph[name] = sorted({*graph.get(name, ()), *(one for one, _ in found if one != WHEEL)})
        waiting += found
    return graph


def licence(name: str) -> list[dict[str, Any]]:
    """As the package tells it: an expression, or words."""
    try:
        told = metadata(name)
    except PackageNotFoundError:
        return []
    if "License-Expression" in told:
        return [{"expression": told["License-Expression"]}]
    words = [one.rpartition(" :: ")[2] for one in told.get_all("Classifier") or () if one.startswith("License ::")]
    if not words and "License" in told:
        words = [told["License"].strip().splitlines()[0][:100]]
    return [{"license": {"name": one}} for one in words if one]


def reference(name: str, release: str | None) -> str:
    """The package URL."""
    return f"pkg:pypi/{name}" + (f"@{release}" if release else "")


def document(now: datetime) -> dict[str, Any]:
    """The whole document."""
    versions, own = locked(), version(WHEEL)
    required, graph = closure(frozenset()), closure(frozenset(EXTRAS))

    def ref(name: str) -> str:
        return reference(name, own if name == WHEEL else versions.get(name, (None,))[0])

    components = list[dict[str, Any]]()
    for name in sorted(graph.keys() - {WHEEL}):
        release, digests = versions.get(name, (None, []))
        one: dict[str, Any] = {
            "type": "library", "bom-ref": ref(name), "name": name, "purl": ref(name),
            "scope": "required" if name in required else "optional",
        }  # fmt: skip
        if release is not None:
            one["version"] = release
        if licences := licence(name):
            one["licenses"] = licences
        one["properties"] = [{"name": "penstock:sha256", "value": digest} for digest in sorted(digests)]
        components.append(one)
    wheel: dict[str, Any] = {
        "type": "application", "bom-ref": ref(WHEEL), "name": WHEEL, "version": own, "purl": ref(WHEEL),
        "licenses": licence(WHEEL),
    }  # fmt: skip
    built = sorted((ROOT / "dist").glob(f"{WHEEL}-{own}-*.whl"))
    if built:
        wheel["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(built[-1].read_bytes()).hexdigest()}]
    body = {
        "components": components,
        "dependencies": [
            {"ref": ref(name), "dependsOn": [ref(one) for one in needs]} for name, needs in sorted(graph.items())
        ],
    }
    number = uuid.uuid5(NAMESPACE, json.dumps([wheel, body], sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        "metadata": {"timestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": wheel},
        **body,
    }


def main() -> int:
    """Write it; SOURCE_DATE_EPOCH says when, for builds that are to be the same again."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.now(UTC) if epoch is None else datetime.fromtimestamp(int(epoch), UTC)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / f"{WHEEL}-{version(WHEEL)}.cdx.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    found = document(now)
    target.write_text(json.dumps(found, indent=2) + "\n")
    sys.stdout.write(f"sbom: {len(found['components'])} packages in {target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
