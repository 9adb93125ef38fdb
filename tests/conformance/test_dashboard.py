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


def log_in(browser: Browser, http: Http, user: str = "guest", password: str = "guest") -> None:
    browser.go(http.broker.http_url + "/")
    browser.type("input[name=user]", user)
    browser.type("input[name=password]", password)
    browser.press("Log in")
    browser.see("Deepest queues")


def answer(browser: Browser, verb: str, *values: str) -> None:
    """The dialog that is open: its fields in their order, and its button."""
    script = (
        "const all = [...document.querySelectorAll('dialog input, dialog textarea')].filter((f) => !f.readOnly);"
        "all.forEach((f, i) => { f.value = arguments[0][i] }); return all.length"
    )
    assert browser.run(script, list(values)) == len(values)
    browser.press(verb, "dialog")


def test_an_operator_sees_and_changes_where_messages_go(http: Http, tmp_path: Path) -> None:
    http.do("PUT", "exchanges/%2F/shop", {"type": "topic", "arguments": {"alternate-exchange": TURNED}}, 201)
    http.do("PUT", f"exchanges/%2F/{quote(HOSTILE)}", {"type": "fanout", "durable": False, "auto_delete": True}, 201)
    with Browser(tmp_path) as browser:
        log_in(browser, http)
        browser.press("Exchanges", "nav")
        browser.see("10 of 10 exchanges, page 1 of 1")
        browser.see("transient, auto-delete")
        browser.type("input[type=search]", "sho")
        browser.see("1 of 10 exchanges")
        browser.press("shop")
        browser.see('topic, {"alternate-exchange":"pay⟨U+202E⟩lanosrep"}')
        browser.see("0 bindings")

        browser.press("Publish…")
        answer(browser, "Publish", "order.new", "first", "[]")
        browser.see("properties: no JSON object: []")
        answer(browser, "Publish", "order.new", "first", "")
        browser.see("No queue took it")
        browser.press("Cancel", "dialog")
        browser.press("Bind…")
        answer(browser, "Bind", "missing", "order.#", "")
        browser.see("no queue 'missing'")
        answer(browser, "Bind", "q", "order.#", '{"note": 1}')
        browser.see("q is bound to shop.")
        browser.see('{"note":1}')
        browser.press("Bind…")
        browser.run("document.querySelector('dialog select').value = 'exchange'")
        answer(browser, "Bind", HOSTILE, "#", "")
        browser.see("2 bindings")
        browser.press("Publish…")
        answer(browser, "Publish", "order.new", "first", '{"headers": {"region": "north"}}')
        browser.see("It was published, and a queue took it.")
        assert http.broker.stats("q")["ready"] == 1

        browser.press(HOSTILE)
        browser.see("fanout, transient, auto-delete")
        browser.see("1 binding, page 1 of 1")
        browser.press("Unbind…")
        browser.press("Unbind", "dialog")
        browser.see("is not bound to shop by '#' any more")
        browser.run("location.hash = arguments[0]", "#/queue/%2F/q")
        browser.see("2 bindings, page 1 of 1")
        buttons = "return [...document.querySelectorAll('main td.press')].map((cell) => cell.textContent)"
        assert browser.run(buttons) == ["", "Unbind…"], "nobody is unbound from the exchange without a name"
        browser.press("Unbind…")
        browser.press("Unbind", "dialog")
        browser.see("1 binding, page 1 of 1")
        assert [one for one in browser.complaints() if "404" not in one] == []


def test_an_operator_sees_and_changes_policies_and_sees_who_may_what(http: Http, tmp_path: Path) -> None:
    http.do("PUT", "operator-policies/%2F/most", {"pattern": "^q$", "definition": {"max-length": 9}}, 201)
    http.do("PUT", "users/ann", {"password": "secret", "tags": "monitoring"}, 201)
    http.do("PUT", "permissions/%2F/ann", {"configure": "", "write": "^shop", "read": ".*"}, 201)
    http.do("PUT", "user-limits/ann/max-channels", {"value": 12}, 204)
    http.do("PUT", "vhost-limits/%2F/max-queues", {"value": 100}, 204)
    with Browser(tmp_path) as browser:
        log_in(browser, http)
        browser.press("Policies", "nav")
        browser.see("max-length 9")
        browser.press("Add…")
        answer(browser, "Add", "short", "/", "^q", "3", '{"max-length": "many"}')
        browser.wait(lambda: browser.run("return document.querySelector('dialog .failed:not([hidden])')"), "a refusal")
        answer(browser, "Add", "short", "/", "^q", "3", '{"max-length": 20, "message-ttl": 60000}')
        browser.see("short holds.")
        browser.see("max-length 20, message-ttl 60000")
        assert http.get("queues/%2F/q")["penstock"]["settings"]["max_length"]["value"] == 9, "the stricter of both"
        browser.press("Change…")
        answer(browser, "Change", "^q", "4", '{"max-length": 5}')
        browser.see("max-length 5")
        assert http.get("policies/%2F/short")["priority"] == 4
        browser.press("Remove…")
        browser.press("Remove", "dialog")
        browser.see("There is none.")
        assert http.get("policies") == []

        browser.press("Users", "nav")
        for text in ("max-channels 12", "^shop", "max-queues 100", "monitoring"):
            browser.see(text)
        browser.press("Log out")
        log_in(browser, http, "ann", "secret")
        browser.press("Users", "nav")
        refused = "return document.querySelectorAll('main .failed:not([hidden])').length"
        browser.wait(lambda: browser.run(refused), "that she may not see it")
        assert "guest" not in browser.text()


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

        for place in ("Topics", "Streams", "Connections", "Log"):
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
        for place in (
            "", "queues", "queue/%2F/q", "exchanges", "exchange/%2F/amq.topic", "policies", "users", "connections",
            "sql",
        ):  # fmt: skip
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
