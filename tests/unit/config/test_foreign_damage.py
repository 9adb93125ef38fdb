"""Files that were cut, doubled or scribbled on: a mistake with a sentence, or settings that can be written."""

from __future__ import annotations

import contextlib
import json
import re
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.config.foreign import read_foreign
from penstock.config.foreign.converted import to_toml
from penstock.config.load import judged
from penstock.errors import SettingsError

EXAMPLES = Path(__file__).resolve().parents[2] / "scenarios" / "amps"
SOURCES = [
    (EXAMPLES / f"{name}.xml").read_bytes() for name in ("whole-instance", "every-element", "one-queue", "dead-letters")
]
TAGS = sorted({tag for source in SOURCES for tag in re.findall(rb"<(\w+)>", source)})


@st.composite
def scribbled(draw: st.DrawFn) -> bytes:
    """One of the examples with a few lines dropped, doubled or moved, tags exchanged and values overwritten."""
    lines = draw(st.sampled_from(SOURCES)).split(b"\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(("drop", "double", "move", "tag", "value", "bytes"))):
            case "drop":
                lines[at] = b""
            case "double":
                lines.insert(at, lines[at])
            case "move":
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
            case "tag":
                tag = draw(st.sampled_from(TAGS))
                lines[at] = re.sub(rb"<(/?)\w+", rb"<\1" + tag, lines[at])
            case "value":
                value = draw(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=12))
                safe = value.replace("&", "&amp;").replace("<", "&lt;").encode()
                lines[at] = re.sub(rb">[^<]+<", b">" + safe.replace(b"\\", rb"\\") + b"<", lines[at])
            case _:
                lines[at] += draw(st.binary(max_size=3))
    return b"\n".join(lines)


NAMES = st.sampled_from(
    ["name", "vhost", "type", "durable", "auto_delete", "arguments", "source", "destination", "destination_type"]
    + ["routing_key", "pattern", "definition", "apply-to", "priority", "user", "configure", "write", "read", "x"]
    + ["x-message-ttl", "x-queue-type", "x-max-length", "x-expires", "x-filter", "x-retry"]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["q", "/", "topic"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=12,
)
SECTION = st.sampled_from(
    ["users", "vhosts", "permissions", "policies", "exchanges", "queues", "bindings", "parameters"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(top=st.dictionaries(SECTION, JSON | st.lists(st.dictionaries(NAMES, JSON, max_size=8), max_size=3), min_size=1))
def test_definitions_of_any_shape_are_told_or_taken(
    top: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "definitions"
    path.write_text(json.dumps(top))
    with contextlib.suppress(SettingsError):
        converted = read_foreign(path)
        assert tomllib.loads(to_toml(converted.settings, converted.places)) == converted.settings
        judged(converted)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=scribbled())
def test_a_damaged_file_is_told_or_taken(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "scribbled"
    path.write_bytes(data)
    with contextlib.suppress(SettingsError):
        converted = read_foreign(path, {"DATA": "/data"})
        judged(converted)
        assert tomllib.loads(to_toml(converted.settings, converted.places)) == converted.settings


QUEUE = "<AMPSConfig><SOW><Queue><Name>{}</Name></Queue></SOW></AMPSConfig>"


def refused(tmp_path: Path, text: str, environ: dict[str, str]) -> str:
    path = tmp_path / "made.xml"
    path.write_text(text)
    with pytest.raises(SettingsError) as error:
        judged(read_foreign(path, environ))
    return str(error.value)


def test_what_variables_stand_for_does_not_grow_without_bound(tmp_path: Path) -> None:
    """10 GB out of 500 kB, and in a second form out of very many elements."""
    wide = QUEUE.format("${X}" * 100_000)
    long = QUEUE.format("</Name></Queue><Queue><Name>".join(["${X}"] * 5_000))
    for text in (wide, long):
        told = refused(tmp_path, text, {"X": "x" * 100_000})
        assert "made.xml:1: <Name>" in told
        assert told.endswith("what is included and what variables stand for is larger than 5,000,000 bytes")


def test_very_many_variables_that_are_not_there_are_told_at_once(tmp_path: Path) -> None:
    known = {f"VARIABLE_{number}": "x" for number in range(200)}
    began = time.process_time()
    told = refused(tmp_path, QUEUE.format("".join(f"${{VARIABLE_{number}X}}" for number in range(50_000))), known)
    assert time.process_time() - began < 5  # 0.5 s; a look for the nearest name of each takes minutes
    assert "the environment has no variable VARIABLE_0X; did you mean 'VARIABLE_0'?" in told
    assert told.count("\n") == 100
