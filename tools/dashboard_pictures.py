"""The pictures of the dashboard in docs/, made anew: a shop's queues for a minute, looked at with a headless Chromium.

PYTHONPATH=tests .venv/bin/python tools/dashboard_pictures.py
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from pathlib import Path

from browser import MISSING, Browser
from live_server import LiveServer

DOCS = Path(__file__).resolve().parents[1] / "docs"
MINUTE_S = 64.0  # the curves of a picture show a real minute of a running server: a little more than they are wide

SETTINGS = """
[[queue]]
name = "orders"
[[queue]]
name = "to-ship"
underlying_topic = "orders"
filter = "/total > 50"
[[queue]]
name = "invoices"
underlying_topic = "orders"
[[queue]]
name = "mail"
message_ttl = "15s"
dead_letter_exchange = ""
dead_letter_routing_key = "returned"
[[queue]]
name = "returned"
"""

REGIONS = ("north", "south", "east", "west")
NOTES = ("", "gift wrapped", "leave with a neighbour", "call before delivery")


class Shop:
    """Customers who order, and those who work for them."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        self.closed = threading.Event()
        self.threads = [threading.Thread(target=self.customers)]
        self.threads += [
            threading.Thread(target=self.clerk, args=given) for given in (("orders", 34), ("to-ship", 40), ("mail", 12))
        ]

    def customers(self) -> None:
        """60 orders a second, of which each has a mail."""
        chance, channel, number = random.Random(1), self.server.connect().channel(), 0
        while not self.closed.wait(1 / 20):
            for _ in range(3):
                number += 1
                order = {
                    "id": number, "total": round(chance.uniform(5, 100), 2), "region": chance.choice(REGIONS),
                    "note": chance.choice(NOTES),
                }  # fmt: skip
                channel.basic_publish("", "orders", json.dumps(order).encode())
            channel.basic_publish("", "mail", json.dumps({"order": number, "text": "Thank you."}).encode())

    def clerk(self, queue: str, a_second: int) -> None:
        """Somebody who works off a queue, so many messages a second."""
        channel = self.server.connect().channel()
        channel.basic_qos(prefetch_count=20)
        for method, _, _ in channel.consume(queue, inactivity_timeout=0.2):
            if self.closed.wait(1 / a_second):
                return
            if method is not None:
                channel.basic_ack(method.delivery_tag)


def main() -> None:
    """Both pictures."""
    assert not MISSING, MISSING
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "penstock.toml").write_text(SETTINGS)
        server = LiveServer(folder / "server", [str(folder / "penstock.toml")])
        server.http = "127.0.0.1:0"
        with server, Browser(folder, 1280, 1000) as browser:
            shop = Shop(server)
            for thread in shop.threads:
                thread.start()
            browser.go(f"http://{server.ready['http']}/")
            browser.type("input[name=user]", "guest")
            browser.type("input[name=password]", "guest")
            browser.press("Log in")
            browser.see("Deepest queues")
            time.sleep(MINUTE_S)
            browser.picture(DOCS / "dashboard.png")
            browser.press("orders")
            browser.see("Peek")
            browser.press("Peek")
            browser.see("Bookmark")
            time.sleep(MINUTE_S)
            browser.picture(DOCS / "dashboard-queue.png")
            shop.closed.set()
            for thread in shop.threads:
                thread.join()


if __name__ == "__main__":
    main()
