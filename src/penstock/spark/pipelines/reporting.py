"""Tells how pipelines are: in a file beside their checkpoints, and to the server, which shows it to whoever asks.

A thread of its own talks to the server, so that one that is slow or gone holds up no pipeline.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, Refused
from penstock.spark.remote import Remote, Where

if TYPE_CHECKING:
    from penstock.spark.pipelines.driver import Driver

logger = logging.getLogger("penstock.pipelines")

TELL_S = 1.0
PATIENCE_S = 0.1


class Reporter:
    """Of one driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lag: dict[str, dict[str, int]] = {}  # by pipeline and input
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._state = "starting"
        self._pipelines: dict[str, Any] = {}  # as told last; replaced, never changed

    def start(self) -> None:
        """Begin to tell the server."""
        self._thread = threading.Thread(target=self._serve, name="penstock-report", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Tell for the last time."""
        self.tell("stopped")
        self._ended.set()
        if self._thread is not None:
            self._thread.join(2.0)

    def told(self) -> dict[str, Any]:
        """How each pipeline is.  For the driver's thread, which alone changes what it is made of."""
        now = time.monotonic()
        stopped = self._state == "stopped"
        told: dict[str, Any] = {}
        for one in list(self._driver.all):
            status = one.status(now)
            if stopped and status["state"] not in ("failed", "done"):
                status["state"] = "stopped"
            lag = self._lag.get(one.name, {})
            told[one.name] = {**status, "lag": sum(lag.values()) if lag else None, "lag_by_input": lag}
        return told

    def tell(self, state: str) -> None:
        """Write the status file."""
        self._state = state
        folder, name = self._driver.folder, self._driver.name
        self._pipelines = self.told()
        told = {"state": state, "pid": os.getpid(), "time": time.time(), "pipelines": self._pipelines}
        file = folder / ("status.json" if name == "driver" else f"status-{name}.json")
        aside = file.with_suffix(".part")
        aside.write_text(json.dumps(told))
        os.replace(aside, file)

    def _serve(self) -> None:
        where, server = None, None
        complaint: str | None = None
        while True:
            ended = self._ended.wait(TELL_S)
            try:
                job = self._driver.job  # address and password may change while it runs
                wanted = Where(job["url"], job.get("user"), job.get("password"), PATIENCE_S)
                if server is None or wanted != where:
                    if server is not None:
                        server.close()
                    where, server = wanted, Remote(wanted)
                if not ended:
                    self._look_at_streams(server)
                server.act("pipeline_report", driver=self._driver.name, host=socket.gethostname(), pid=os.getpid(),
                           state=self._state, pipelines=self._pipelines)  # fmt: skip
                complaint = None
            except PenstockError as error:
                if complaint != error.code:
                    logger.warning("the server is not told how the pipelines are: %s", error)
                complaint = error.code
            if ended:
                return

    def _look_at_streams(self, server: Remote) -> None:
        """What each stream has yet to read, as the server counts it."""
        try:
            found = server.act("streams")["streams"]
            lags = {str(one["stream"]): int(one["lag_messages"]) for one in found if one["lag_messages"] is not None}
        except Refused:
            lags = {}  # a user who may not see streams
        for one in list(self._driver.all):
            definition = one.pipeline.definition
            names = {source.name: definition.stream_of(source) for source in definition.streams}
            self._lag[one.name] = {name: lags[stream] for name, stream in names.items() if stream in lags}
