"""nameko: two services that call each other, an event, an error from afar, calls at once, a service there is none."""

from __future__ import annotations

import eventlet
import eventlet.event

eventlet.monkey_patch()

import json  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

from nameko.events import EventDispatcher, event_handler  # noqa: E402
from nameko.exceptions import RemoteError, UnknownService  # noqa: E402
from nameko.rpc import RpcProxy, rpc  # noqa: E402
from nameko.runners import ServiceRunner  # noqa: E402
from nameko.standalone.rpc import ClusterRpcProxy  # noqa: E402

COUNT = 30
heard, over = list[int](), eventlet.event.Event()


class First:
    name = "first"
    dispatch = EventDispatcher()
    second = RpcProxy("second")

    @rpc
    def twice(self, n: int) -> Any:
        self.dispatch("asked", n)
        return self.second.double(n)

    @rpc
    def fails(self) -> None:
        raise KeyError("no")


class Second:
    name = "second"

    @rpc
    def double(self, n: int) -> int:
        return 2 * n

    @event_handler("first", "asked")
    def asked(self, n: int) -> None:
        heard.append(n)
        if len(heard) == 2 * COUNT:
            over.send()


def main(url: str) -> None:
    config = {"AMQP_URI": url}
    runner = ServiceRunner(config)
    for service in (First, Second):
        runner.add_service(service)
    runner.start()
    said = dict[str, Any]()
    with ClusterRpcProxy(config, timeout=30) as services:
        said["one by one"] = [services.first.twice(n) for n in range(COUNT)]
        asked = [services.first.twice.call_async(n) for n in range(COUNT)]
        said["at once"] = [one.result() for one in asked]
        try:
            services.first.fails()
        except RemoteError as error:
            said["error"] = str(error)
        try:
            services.nobody.is_there()
        except UnknownService as error:
            said["nobody"] = str(error)
    with eventlet.Timeout(30):
        over.wait()
    runner.stop()
    print(json.dumps({**said, "heard": sorted(heard)}))


if __name__ == "__main__":
    main(f"amqp://guest:guest@127.0.0.1:{sys.argv[1]}/")
