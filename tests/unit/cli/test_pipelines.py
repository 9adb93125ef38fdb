"""What `pipeline check` says beside Spark's verdict."""

from __future__ import annotations

from penstock.cli.pipeline_runs import verdict
from penstock.config.impossible import of_pipeline, of_views
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
    notes = of_pipeline(settings.pipeline[0], settings, "penstock.toml")
    assert notes == [
        "penstock.toml has no [[queue]] 'fligths'; did you mean 'flights'?: without it a client must declare it first",
        "penstock.toml has no [[queue]] 'out': without it a client must declare it first",
    ]
    good = {"pipeline": "p", "verdict": "good", "columns": {"id": "bigint"}, "mode": "append", "remembers": False}
    assert verdict({**good, "notes": notes[1:]}) == f"p: good (id bigint; mode append); {notes[1]}"


TOPICS = """
[[queue]]
name = "to-ship"
underlying_topic = "^orders[.]"
default_publish_target = "orders.eu"

[[topic]]
name = "departures"

[[pipeline]]
name = "p"
sql = "SELECT 1"
to = [{ topic = "made" }]
inputs = { a = { topic = "departurs" }, b = { topic = "orders.eu" }, c = { topic = "made" }, d = { topic = "^any" } }
"""


def test_so_is_a_topic_that_nothing_keeps() -> None:
    settings = load_text(TOPICS)
    [told] = of_pipeline(settings.pipeline[0], settings, "a.toml")
    what = "a.toml has no [[topic]] 'departurs'; did you mean 'departures'?"
    assert told == f"{what}: what no queue shows and nobody declares is lost"


VIEWS = """
[[topic]]
name = "customers"
key = ["/id"]

[[topic]]
name = "keyless"

[[queue]]
name = "jobs"

[[conflated_topic]]
name = "slow"
source = "custmers"

[[view]]
name = "rows"
source = "keyless"
select = "/id"

[[view]]
name = "both"
join = ["[jobs]./id = [people]./id"]
select = "[jobs]./id"

[[view]]
name = "right"
source = "customers"
select = "/id"

[[conflated_topic]]
name = "slow-rows"
source = "right"
"""


def test_and_the_source_of_a_view() -> None:
    rows, both, slow = of_views(load_text(VIEWS))
    assert rows == "[[view]] 'rows' is empty until a client declares its source 'keyless', which these settings do not"
    assert both.startswith("[[view]] 'both' is empty until a client declares its source 'people'")
    assert slow.startswith("[[conflated_topic]] 'slow' is empty until a client declares its source 'custmers'")
    assert slow.endswith("; did you mean 'customers'?")
