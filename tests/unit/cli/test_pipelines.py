"""What `pipeline check` says beside Spark's verdict."""

from __future__ import annotations

from penstock.cli.pipeline_runs import undeclared, verdict
from penstock.config.load import load_text

TEXT = """
[[queue]]
name = "flights"

[[pipeline]]
name = "p"
from = { queue = "fligths", columns = "id BIGINT" }
sql = "SELECT id FROM input"
to = [{ queue = "out" }, { queue = "flights" }, { topic = "t" }]
"""


def test_a_queue_that_the_settings_do_not_have_is_named() -> None:
    settings = load_text(TEXT)
    notes = undeclared(settings.pipeline[0], settings, "penstock.toml")
    assert notes == [
        "penstock.toml has no [[queue]] 'fligths'; did you mean 'flights'?: without it a client must declare it first",
        "penstock.toml has no [[queue]] 'out': without it a client must declare it first",
    ]
    good = {"pipeline": "p", "verdict": "good", "columns": {"id": "bigint"}, "mode": "append", "remembers": False}
    assert verdict({**good, "notes": notes[1:]}) == f"p: good (id bigint; mode append); {notes[1]}"
