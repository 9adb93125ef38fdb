"""`docs/clients.md` says what the walks beside RabbitMQ let differ, each with its reason."""

from __future__ import annotations

from conformance.clients_page import PAGE, RUNS, differences


def test_the_page_of_clients_has_every_difference() -> None:
    text = PAGE.read_text()
    assert differences() in text
    for run in RUNS:
        assert f"| {run.client} |" in text
