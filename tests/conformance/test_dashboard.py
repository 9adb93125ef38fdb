"""The dashboard in a browser, as a user has it: logging in, finding a queue, looking at hostile messages, acting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from browser import MISSING, Browser
from http_lab import NO_TLS, Http
from penstock.testing import Broker

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

HOSTILE = "<img src=x onerror=alert(1)>"


TURNED = "pay\u202elanosrep"
"""A name of which a browser writes a part from the right to the left."""


@pytest.fixture
def http() -> Iterator[Http]:
    with Broker({"queue": [{"name": "q"}, {"name": HOSTILE, "lease_period": "30s"}]}) as broker:
        yield Http(broker)


def test_a_user_finds_his_way(http: Http, tmp_path: Path) -> None:
    for n in range(60):
        http.do("PUT", f"queues/%2F/jobs-{n:03}", {}, 201)
    for n in range(3):
        http.broker.publish(HOSTILE, b'{"n": %d, "text": "<script>document.title = \'owned\'</script>"}' % n)
    with Browser(tmp_path) as browser:
        browser.go(http.broker.http_url + "/")
        browser.type("input[name=user]", "guest")
        browser.type("input[name=password]", "wrong")
        browser.press("Log in")
        browser.see("Login failed")
        browser.type("input[name=password]", "guest")
        browser.press("Log in")
        browser.see("Deepest queues")
        browser.see(HOSTILE)  # among the deepest, as text
        browser.see("Nothing since this tab was opened.")

        browser.press("Queues")
        browser.see("62 of 62 queues, page 1 of 2")
        browser.type("input[type=search]", "jobs-01")
        browser.see("10 of 62 queues, page 1 of 1")
        browser.type("input[type=search]", "onerror")
        browser.see("1 of 62 queues")
        browser.press(HOSTILE)
        browser.see("Nobody consumes.")
        browser.see("lease_period")

        browser.type("input[placeholder^='/total']", "/n > 0")
        browser.press("Peek")
        browser.see("2 found in the first 3 that are ready.")
        browser.see("<script>")
        browser.type("input[placeholder^='/total']", "/n >>")
        browser.press("Peek")
        browser.wait(
            lambda: browser.run("return document.querySelector('pre.failed:not([hidden])') !== null"), "a refusal"
        )

        browser.press("Pause")
        browser.press("Pause", "dialog")
        browser.see("is paused")
        browser.press("Resume")
        browser.press("Resume", "dialog")
        browser.see("goes on")
        browser.press("Move…")
        browser.type("dialog label:nth-of-type(1) input", "q")
        browser.type("dialog label:nth-of-type(2) input", "/n = 2")
        browser.press("Count", "dialog")
        browser.see("1 of 1 would go: 1 to q")
        browser.press("Move", "dialog")
        browser.see("1 message went: 1 to q")
        assert http.broker.stats("q")["ready"] == 1
        browser.press("Purge…")
        browser.wait(lambda: "2 messages are ready" in browser.text(), "a count")
        browser.press("Remove 2 messages", "dialog")
        browser.see("was purged")
        assert http.broker.stats(HOSTILE)["ready"] == 0

        for place in ("Topics", "Streams & pipelines", "Connections", "Log"):
            browser.press(place, "nav")
            browser.wait(lambda: browser.run("return document.querySelector('main h1') !== null"), place)
        browser.see("segment")
        consumer = http.broker.subscribe("q", max_backlog=7)
        browser.press("Connections", "nav")
        browser.see("Nobody is connected over AMQP.")
        browser.see("1 consumer, page 1 of 1")
        backlog = "return document.querySelectorAll('main table')[1].querySelectorAll('td.number')[1].textContent"
        browser.wait(lambda: browser.run(backlog) == "7", "its backlog")
        consumer.close()
        browser.see("0 consumers, page 1 of 1")
        browser.press("SQL", "nav")
        statement = "return document.querySelector('textarea').value"
        browser.wait(lambda: 'FROM "q"' in browser.run(statement), "a statement about the deepest queue")
        browser.press("Run")
        browser.see("1 row in")
        browser.type("textarea", 'SELECT count(*) AS n, 2 AS two FROM "q"')
        browser.press("Run")
        browser.see("two")
        browser.type("textarea", "SELECT nonsense")
        browser.press("Run")
        failed = "return document.querySelector('pre.failed').textContent"
        browser.wait(lambda: "nonsense" in browser.run(failed), "why it failed")
        result = "return document.querySelector('[aria-label=Result]').childElementCount"
        assert browser.run(result) == 0, "what another statement gave stands below the one that failed"
        http.do("PUT", f"queues/%2F/{quote(TURNED)}", {}, 201)
        browser.run("location.hash = arguments[0]", f"#/queue/%2F/{quote(TURNED)}")
        browser.see("pay⟨U+202E⟩lanosrep")  # as it is, and not the other way around
        browser.run("import('/dashboard/dom.js').then((dom) => dom.say('It failed here.', true))")
        browser.see("It failed here.")
        browser.press("Queues", "nav")
        browser.wait(lambda: "It failed here." not in browser.text(), "the note of another place to go")
        browser.size(420, 800)
        for place in ("", "queues", "queue/%2F/q", "sql"):
            browser.run("location.hash = arguments[0]", f"#/{place}")
            browser.wait(lambda: browser.run("return document.querySelector('main h1') !== null"), place)
            wide = "return document.documentElement.scrollWidth <= window.innerWidth"
            assert browser.run(wide), f"{place} is wider than a narrow window"
        assert browser.run("return document.title").endswith("Penstock")
        complaints = [one for one in browser.complaints() if "401" not in one and "400" not in one]
        assert complaints == []
        http.do("PUT", "users/guest", {"password": "other", "tags": "administrator"})
        browser.press("Queues", "nav")
        browser.see("The login is not good any more.")
    assert httpx.get(http.broker.http_url + "/", verify=NO_TLS, timeout=20).status_code == 200
