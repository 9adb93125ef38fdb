"""What a follower's Flight port says: gRPC's own client understands it, and what is no such client gets nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import penstock
from penstock.config.load import load_mapping
from penstock.errors import NotLeading
from penstock.server.cluster.flight_refusals import FlightRefusals, refusal
from penstock.server.sockets.listening import patient
from penstock.server.sockets.tls import Keeper
from tls_lab import Files

WHO = NotLeading("this server follows: p1 leads, whose stream is at 127.0.0.1:8817: 100 %")
SCHEMA = pa.schema([("body", pa.binary())])


@asynccontextmanager
async def following(files: Files | None = None) -> AsyncIterator[tuple[int, FlightRefusals]]:
    """The port of one that follows, with TLS where there are files."""
    name = "flight" if files is None else "flight_tls"
    values: dict[str, Any] = {"listen": {"amqp": "off", "http": "off", "flight": "off", name: "127.0.0.1:0"}}
    if files is not None:
        values["tls"] = {"certificate": files.certificate, "key": files.key}
    settings = load_mapping(values)
    said = list[str]()
    refusals = FlightRefusals(patient(asyncio.get_running_loop()), lambda: WHO)
    bound = refusals.open(settings, None if files is None else Keeper(settings.tls), said.append)
    assert said == []
    try:
        yield bound[name][1], refusals
    finally:
        refusals.close()


def acts(client: Any) -> None:
    list(client.do_action(flight.Action("health", b"{}")))


def gets(client: Any) -> None:
    client.do_get(flight.Ticket(b"{}")).read_all()


def puts(client: Any) -> None:
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(b"{}"), SCHEMA)
    with writer:
        for _ in range(50):
            writer.write_table(pa.table({"body": [bytes(1000)] * 100}, SCHEMA))
        writer.done_writing()


def exchanges(client: Any) -> None:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"{}"))
    with writer:
        writer.begin(SCHEMA)
        writer.done_writing()
        reader.read_all()


@pytest.mark.parametrize("call", [acts, gets, puts, exchanges])
def test_every_call_is_told_who_leads(call: Callable[[Any], None]) -> None:
    def ask(port: int) -> None:
        with flight.connect(f"grpc://127.0.0.1:{port}") as client:
            for _ in range(3):
                with pytest.raises(flight.FlightUnavailableError, match="p1 leads, whose stream .* 100 %"):
                    call(client)

    async def run() -> None:
        async with following() as (port, _):
            await asyncio.to_thread(ask, port)

    asyncio.run(run())


def test_our_client_knows_that_nothing_was_done_and_over_tls_too(tmp_path: Path) -> None:
    files = Files(tmp_path)

    def ask(url: str, **trust: Any) -> None:
        with pytest.raises(NotLeading, match="p1 leads"):
            penstock.connect(url, **trust)

    async def run() -> None:
        async with following() as (port, _):
            await asyncio.to_thread(ask, f"penstock://127.0.0.1:{port}")
        async with following(files) as (port, _):
            await asyncio.to_thread(ask, f"penstocks://127.0.0.1:{port}", ca=files.ca)

    asyncio.run(run())


def test_the_address_is_free_once_it_leads() -> None:
    async def run() -> None:
        async with following() as (port, refusals):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert await reader.readexactly(9) == bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
            refusals.close()
            told = await reader.read()
            assert (told[3], len(told)) == (7, 17), "its last word is that it takes no more calls"
            writer.close()
            with socket.create_server(("127.0.0.1", port)):
                pass

    asyncio.run(run())


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\xff\xff\x00\0\0\0\0\1" + bytes(100)],
    ids=["no HTTP/2", "a frame that is too large"],
)
def test_what_is_no_such_client_is_cut_off(said: bytes) -> None:
    async def run() -> None:
        async with following() as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            try:
                await asyncio.wait_for(reader.read(), 20)
            except ConnectionResetError:
                pass
            writer.close()

    asyncio.run(run())


def test_who_asks_for_answers_and_reads_none_is_cut_off() -> None:
    async def run() -> None:
        async with following() as (port, _):
            link = socket.socket()
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # some kernels would take all the answers
            link.connect(("127.0.0.1", port))
            _, writer = await asyncio.open_connection(sock=link)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]

            async def call() -> None:
                for first in range(1, 1_000_000, 200):
                    numbers = range(first, first + 200, 2)
                    writer.write(b"".join(b"\0\0\0\1\5" + number.to_bytes(4, "big") for number in numbers))
                    await writer.drain()

            with pytest.raises(ConnectionError):
                await call()
            writer.close()

    asyncio.run(run())


def test_a_long_sentence_has_its_length_in_several_bytes() -> None:
    told = refusal(1, NotLeading("x" * 500))
    size = int.from_bytes(told[:3], "big")
    assert len(told) == 9 + size
    assert b"\x7f" in told
    assert told.endswith(b"x" * 500)
