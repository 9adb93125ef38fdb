"""A server in this process with users of all kinds, asked over every door as one of them: for what rights allow.

Everything of the vhost `/` that a request names is called `held`, or begins so; what is not there is called `gone`.
"""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar
from unittest.mock import patch

import orjson
import pyarrow as pa
from pyarrow import flight

from penstock.records.password_hashes import SHA256
from penstock.records.queue_settings import QueueSettings
from penstock.server.app import App
from penstock.server.people.accounts import Account, Kept, Permission, hash_password
from penstock.testing.process import load
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import HEADER, METHOD, PROTOCOL_HEADER, frame
from penstock.wire.flight.failures import decode_error
from progress import given

T = TypeVar("T")

HELD, GONE = "held", "gone"
NAMED = re.compile(r"'(held[\w-]*|gone[\w-]*|/)'")
PASSWORD = "secret"

CONFIG = """
[server]
sync = "off"
[before_login]
wrong_logins = 1_000_000
[listen]
amqp = "127.0.0.1:0"
http = "127.0.0.1:0"
flight = "127.0.0.1:0"
[[user]]
name = "driver"
password = "secret"
[[user]]
name = "keeper"
password = "secret"
[[vhost]]
name = "shop"
"""
"""`driver` is whom pipelines act as; `keeper` makes what is there.  Both are of the settings, without permissions."""


@dataclass(frozen=True)
class User:
    """One kind of user.  has: what it may do in `/`: all, nothing but open it, not even that, or some of the three."""

    tag: str
    has: str  # all, nothing, other, none; or of PARTS

    @property
    def name(self) -> str:
        return f"{self.tag or 'untagged'}-{self.has}"

    @property
    def opens(self) -> bool:
        """Whether it has the vhost."""
        return self.has not in {"other", "none"}


TAGS = ("", "management", "policymaker", "monitoring", "administrator")
USERS = [User(tag, has) for tag in TAGS for has in ("all", "nothing", "other")]
USERS += [User("", "none"), User("monitoring", "none")]
_PERMISSIONS = {"all": ("/", ".*"), "nothing": ("/", ""), "other": ("shop", ".*")}

THREE = ("configure", "write", "read")
PARTS = [User("management", "+".join(some)) for size in (1, 2) for some in combinations(THREE, size)]
"""Who may do one or two of the three, with all names."""


class Answer(NamedTuple):
    """What came of a request: `ok`, `refused` with its text, or another error."""

    kind: str
    text: str

    @property
    def plain(self) -> str:
        """The text without what the request named."""
        return NAMED.sub("X", self.text)


class Link:
    """An AMQP connection that is open, or the word why it is not."""

    def __init__(self, port: int, user: str, vhost: str = "/") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.buffer = b""
        self.channel = 0
        self.refused = ""
        self.socket.sendall(PROTOCOL_HEADER)
        self.read()
        capabilities = {"capabilities": {"authentication_failure_close": True}}
        response = f"\0{user}\0{PASSWORD}".encode()
        self.send(m.ConnectionStartOk(capabilities, response=response), 0)
        tune = self.read()
        assert isinstance(tune, m.ConnectionTune), tune
        self.send(m.ConnectionTuneOk(2000, 131_072, 0), 0)
        self.send(m.ConnectionOpen(vhost), 0)
        if isinstance(answer := self.read(), m.ConnectionClose):
            self.refused = answer.reply_text

    @property
    def name(self) -> str:
        """As the server calls it."""
        here, there = self.socket.getsockname(), self.socket.getpeername()
        return f"{here[0]}:{here[1]} -> {there[0]}:{there[1]}"

    def send(self, method: m.Method, channel: int) -> None:
        self.socket.sendall(frame(METHOD, channel, method.encode()))

    def read(self) -> m.Method:
        """The next method; content is passed over."""
        while True:
            if len(self.buffer) >= 7:
                size = int.from_bytes(self.buffer[3:7], "big")
                if len(self.buffer) >= size + 8:
                    kind, payload = self.buffer[0], self.buffer[7 : 7 + size]
                    self.buffer = self.buffer[size + 8 :]
                    if kind == METHOD:
                        return m.decode_method(payload)
                    continue
            data = self.socket.recv(65_536)
            if not data:
                raise EOFError
            self.buffer += data

    def open_channel(self) -> int:
        """The number of a new one."""
        self.channel += 1
        self.send(m.ChannelOpen(), self.channel)
        self.read()
        return self.channel

    def ask(self, *methods: m.Method, body: bool = False) -> Answer:
        """The answer to the last of some methods, on a channel of their own.  body: it is a publish, and confirmed."""
        number = self.open_channel()
        for method in methods:
            self.send(method, number)
            if body and method is methods[-1]:
                self.socket.sendall(frame(HEADER, number, (60).to_bytes(2, "big") + bytes(2 + 8 + 2)))
            answer = self.read()
            if isinstance(answer, m.ChannelClose):
                self.send(m.ChannelCloseOk(), number)
                return Answer("refused" if answer.reply_code == 403 else str(answer.reply_code), answer.reply_text)
        self.send(m.ChannelClose(), number)
        while not isinstance(self.read(), m.ChannelCloseOk):
            pass
        return Answer("ok", "")

    def close(self) -> None:
        self.socket.close()


class House:
    """`with House(folder) as house:` - then `http`, `act`, `get`, `put` and `amqp` as some user."""

    def __init__(self, folder: Path, more: str = "") -> None:
        config = CONFIG.replace("[server]\n", f'[server]\ndata = "{folder}"\n') + more
        self.loop = asyncio.new_event_loop()
        self.server = App(load(config), lambda text: None)
        self._thread = threading.Thread(target=self.loop.run_forever, name="penstock-rights")
        self._links = dict[str, Link]()
        self._flights = dict[str, flight.FlightClient]()
        self.stream_epoch = 0

    def __enter__(self) -> Self:
        """Passwords are kept by as little work as there can be: hundreds of users are made."""
        self._quick = patch.multiple("penstock.server.people.accounts", MEMORY_KIB=8, ROUNDS=1)
        self._quick.start()
        self._thread.start()
        self.wait(self.server.start())
        self.server.logins.delay_s = 0.0
        self.app = self.server.http.app  # type: ignore[union-attr]
        self.application = self.server.http.application  # type: ignore[union-attr]
        accounts = self.server.accounts
        hashed = Kept(hash_password(PASSWORD), SHA256)
        for user in USERS:
            tags = (user.tag,) if user.tag else ()
            accounts.users[user.name] = Account(user.name, hashed, tags)
            if user.has in _PERMISSIONS:
                vhost, text = _PERMISSIONS[user.has]
                accounts.permissions[user.name, vhost] = Permission(user.name, vhost, text, text, text)
        for user in PARTS:
            accounts.users[user.name] = Account(user.name, hashed, (user.tag,))
            texts = [".*" if one in user.has.split("+") else "" for one in THREE]
            accounts.permissions[user.name, "/"] = Permission(user.name, "/", *texts)
        accounts.vhosts["held-vhost"] = {}
        accounts.users["held-user"] = Account("held-user", hashed, ())
        accounts.permissions["held-user", "/"] = Permission("held-user", "/", ".*", ".*", ".*")
        accounts.vhost_limits["held-vhost"] = {"max-queues": 7}
        accounts.user_limits["held-user"] = {"max-channels": 7}
        accounts.global_parameters["held"] = 1
        self._accounts = accounts.state()
        self.wait(self._told())
        self.mend()
        return self

    def __exit__(self, *exc: object) -> None:
        for link in self._links.values():
            link.close()
        for client in self._flights.values():
            client.close()
        self.wait(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()
        self._quick.stop()

    # -- the server

    async def _told(self) -> None:
        self.server.accounts.tell()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine on the server's loop."""
        return given(asyncio.run_coroutine_threadsafe(work, self.loop))

    def on_loop(self, work: Callable[[], T]) -> T:
        """The result of a function there."""

        async def call() -> T:
            return work()

        return self.wait(call())

    def mend(self) -> None:
        """Everything that requests name is there."""
        self.on_loop(self._mend)
        held = self._links.get("held-user")
        if held is None or held.name not in self._connections():
            if held is not None:
                held.close()
            self._links["held-user"] = Link(self._port("amqp"), "held-user")
            self._links["held-user"].open_channel()

    def _connections(self) -> list[str]:
        sessions = self.server.amqp.sessions
        return self.on_loop(lambda: [f"{one.peer} -> {one.local}" for one in sessions if not one.closing])

    def _mend(self) -> None:
        core, now, accounts = self.server.engine.core, self.server.engine.now(), self.server.accounts
        if accounts.state() != self._accounts:
            accounts.restore(self._accounts)
            accounts.tell()
        if core.find_queue("/", "aliveness-test") is None:  # which its path declares
            core.declare_queue(now, "/", "aliveness-test", QueueSettings(), durable=False)
        for name in ("held", "held-too"):
            if core.find_queue("/", name) is None:
                core.declare_queue(now, "/", name, QueueSettings())
            core.declare_exchange(
                now, "/", name, "topic", durable=True, auto_delete=False, internal=False, arguments={}, passive=False
            )
        core.bind(now, "/", "held", "held", "queue", "held", {})
        core.bind(now, "/", "held", "held-too", "exchange", "held", {})
        core.declare_topic(now, "/", "", "held-topic", {"key": ["/id"]})
        from penstock.config.queue_arguments import read_policy

        for operator in (False, True):
            policy = read_policy(
                "/", "held", "^held$", {"max-length": 1000}, priority=0,
                apply_to="queues" if operator else "all", operator=operator,
            )  # fmt: skip
            core.set_policy(now, policy)
        if "held-stream" not in core.streams.states:
            core.streams.open(now, "held-stream", core.queue("/", "held"))
        core.sinks.load({}, {})  # a query belongs to who began it
        core.resume_queue(now, core.queue("/", "held"), by="")
        self.server.engine.pipelines.declared = ("held-pipeline",)
        self.server.engine.pipelines._gone.clear()
        self.server.engine.arm()

    def _port(self, door: str) -> int:
        return int(self.server.addresses[door].rsplit(":", 1)[1])

    @property
    def connection(self) -> str:
        """The name of one."""
        return self._links["held-user"].name

    # -- HTTP

    def http(self, user: str, method: str, path: str, body: object = None, password: str = PASSWORD) -> Answer:
        """Ask the application as uvicorn would."""
        login = base64.b64encode(f"{user}:{password}".encode())
        headers = [(b"host", b"here"), (b"authorization", b"Basic " + login)] if user else [(b"host", b"here")]
        plain, _, query = path.partition("?")
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": plain, "raw_path": plain.encode(),
            "query_string": query.encode(), "headers": headers, "client": ("127.0.0.1", 5), "server": ("here", 80),
            "scheme": "http", "root_path": "",
        }  # fmt: skip
        sent: list[Any] = []
        content = b"" if body is None else orjson.dumps(body)

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        self.wait(self.app(scope, receive, send))
        status, text = sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:]).decode()
        if status in {401, 403}:
            return Answer("refused", text)
        return Answer("ok" if status < 400 else str(status), text)

    # -- Flight

    def flight(self, user: str, password: str = PASSWORD) -> tuple[flight.FlightClient, Any]:
        """A client, and what its calls carry."""
        client = self._flights.get("any")
        if client is None:
            client = self._flights["any"] = flight.FlightClient(f"grpc://127.0.0.1:{self._port('flight')}")
        secret = base64.b64encode(f"{user}:{password}".encode())
        return client, flight.FlightCallOptions(headers=[(b"authorization", b"Basic " + secret)], timeout=30)  # type: ignore[list-item]

    @staticmethod
    def told(call: Callable[[], object]) -> Answer:
        """What came of a call."""
        try:
            found = call()
        except pa.ArrowException as error:
            ours = decode_error(str(error), getattr(error, "extra_info", None))
            if ours is None:
                raise
            return Answer("refused" if ours.code == REFUSED else type(ours).__name__, str(ours))
        return Answer("ok", str(found))

    def act(self, user: str, name: str, body: Mapping[str, object], password: str = PASSWORD) -> Answer:
        """DoAction."""
        client, options = self.flight(user, password)
        action = flight.Action(name, orjson.dumps(body))
        return self.told(lambda: [one.body.to_pybytes().decode() for one in client.do_action(action, options)])

    def get(self, user: str, ticket: Mapping[str, object], password: str = PASSWORD) -> Answer:
        """DoGet."""
        client, options = self.flight(user, password)

        def call() -> object:
            reader = client.do_get(flight.Ticket(orjson.dumps(ticket)), options)
            return reader.cancel() if "subscribe" in ticket else reader.read_all().to_pylist()  # that has no end

        return self.told(call)

    def put(self, user: str, command: Mapping[str, object], password: str = PASSWORD, topic: str = HELD) -> Answer:
        """DoPut of one message."""
        client, options = self.flight(user, password)
        schema = pa.schema([pa.field("topic", pa.string()), pa.field("body", pa.binary())])
        rows = pa.RecordBatch.from_pydict({"topic": [topic], "body": [b"x"]}, schema=schema)

        def call() -> None:
            descriptor = flight.FlightDescriptor.for_command(orjson.dumps(command))
            writer, reader = client.do_put(descriptor, rows.schema, options)
            with writer:
                writer.write_batch(rows)
                writer.done_writing()
                while reader.read() is not None:
                    pass

        return self.told(call)

    def exchange(self, user: str, command: Mapping[str, object], password: str = PASSWORD) -> Answer:
        """DoExchange, until the consumer is told its terms."""
        client, options = self.flight(user, password)

        def call() -> None:
            descriptor = flight.FlightDescriptor.for_command(orjson.dumps(command))
            writer, reader = client.do_exchange(descriptor, options)
            with writer:
                writer.begin(pa.schema([]))
                reader.read_chunk()
                writer.done_writing()

        return self.told(call)

    # -- AMQP

    def amqp(self, user: str) -> Link:
        """The user's connection to `/`."""
        link = self._links.get(user)
        if link is None:
            link = self._links[user] = Link(self._port("amqp"), user)
        return link


REFUSED = "PS102"
