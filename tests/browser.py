"""A headless Chromium, driven over WebDriver: what a user of the dashboard sees and does.

Source: W3C WebDriver, the few commands that are needed.
"""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

MISSING = "" if CHROMIUM and DRIVER else "no chromium with its chromedriver on this machine"

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip

WAIT_S = 40.0
STARTS = 5


def started_driver(driver: str) -> tuple[subprocess.Popen[bytes], int]:
    """A driver and its port.  It chooses a port that is free on one address and then asks for the same one on another,
    where somebody may have it: then it ends, and another one is started."""
    said: list[bytes] = []
    for _ in range(STARTS):
        process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(rb"started successfully on port (\d+)", line):
                return process, int(found[1])
            said.append(line)
        process.stdout.close()
        said.append(b"status %d" % process.wait(20))
    raise AssertionError(f"{driver} did not start in {STARTS} attempts: {said}")


class Browser:
    """`with Browser(folder) as browser:`; one window."""

    def __init__(self, folder: Path, width: int = 1280, height: int = 900, *flags: str) -> None:
        assert DRIVER is not None
        assert CHROMIUM is not None
        self._process, port = started_driver(DRIVER)
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        options = {
            "binary": CHROMIUM,
            "args": [*FLAGS, *flags, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"],
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        body = {"capabilities": {"alwaysMatch": wanted}}
        try:
            self._session = f"/session/{self._told(self._http.post('/session', json=body))['sessionId']}"
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._http.delete(self._session)
        finally:
            self._end()

    def _end(self) -> None:
        self._http.close()
        self._process.terminate()
        self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @staticmethod
    def _told(answer: httpx.Response) -> Any:
        value = answer.json()["value"]
        assert answer.status_code == 200, value
        return value

    def _do(self, method: str, path: str, body: object = None) -> Any:
        more: dict[str, Any] = {} if body is None else {"json": body}
        return self._told(self._http.request(method, f"{self._session}{path}", **more))

    def go(self, url: str) -> None:
        """Load a page."""
        self._do("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns."""
        return self._do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self) -> str:
        """What can be read on the page."""
        return str(self.run("return document.body.innerText"))

    def wait(self, done: Callable[[], object], what: str) -> None:
        """Until something is so."""
        until = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < until, f"{what} did not come:\n{self.text()}\n{self.complaints()}"
            time.sleep(0.05)

    def see(self, text: str) -> None:
        """Wait for a text."""
        self.wait(lambda: text in self.text(), repr(text))

    def type(self, css: str, text: str) -> None:
        """Put a text into a field, as typed."""
        script = "const f = document.querySelector(arguments[0]); f.focus(); f.value = arguments[1];"
        self.run(script + "f.dispatchEvent(new Event('input', {bubbles: true}))", css, text)

    def press(self, text: str, within: str = "body") -> None:
        """Click a button, or follow a link, that says so."""
        script = (
            "const all = [...document.querySelector(arguments[1]).querySelectorAll('button, a, summary')];"
            "const one = all.find((b) => b.textContent.trim() === arguments[0] && !b.disabled);"
            "if (one) one.click(); return Boolean(one)"
        )
        self.wait(lambda: self.run(script, text, within), f"a button {text!r}")

    def size(self, width: int, height: int) -> None:
        """The window's."""
        self._do("POST", "/window/rect", {"width": width, "height": height})

    def picture(self, file: Path) -> None:
        """A screenshot, PNG."""
        file.write_bytes(base64.b64decode(self._do("GET", "/screenshot")))

    def complaints(self) -> list[str]:
        """Errors of the console since the last call; a policy that forbade something is one."""
        found = self._do("POST", "/se/log", {"type": "browser"})
        return [one["message"] for one in found if one["level"] in {"SEVERE", "WARNING"}]
