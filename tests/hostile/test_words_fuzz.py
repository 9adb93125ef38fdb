"""Whatever bytes are sent to the HTTP, Flight and AMQP doors, the server lives, answers as the protocol has it, and
nothing of it grows.

A sample of 1,500 words of HTTP/1, HTTP/2 and AMQP; with more effort 100,000, each server pressed by 10,000.
"""

from __future__ import annotations

import os
import re
import select
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from hostile.watching import MIB, Bounds, Watched
from hostile.words import Said, said
from http_lab import NO_TLS
from live_server import LiveServer
from penstock.server.sockets.strangers import MOST, TOLD_S

pytestmark = pytest.mark.usefixtures("as_the_files_say")

SEED = int(os.environ.get("PENSTOCK_SEED", "0"))
A_LIFE = 10_000
"""Words that one server hears."""

AT_ONCE = 8
ANSWER_S = 0.05

BOUNDS = Bounds(memory=96 * MIB, descriptors=80)
LINES = 2 * (MOST + 2)
"""Of the log in `TOLD_S`: of strangers and of clients so many each, and one for each door that says how many more."""

STATUSES = {100, 200, 201, 204, 301, 302, 304, 307, 400, 401, 403, 404, 405, 406, 413, 417, 431, 501, 505}
"""What HTTP may answer to rubbish; 500 is not among them."""

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


class HttpServer(LiveServer):
    http = "127.0.0.1:0"
    loads = True  # its memory is judged


def answer(server: LiveServer, one: Said) -> bytes:
    """What comes back until the server closes."""
    host, _, port = server.ready[one.door].rpartition(":")
    got = b""
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        try:
            sock.sendall(one.data)
            select.select([sock], [], [], ANSWER_S)  # who has ended may not be answered any more
            sock.shutdown(socket.SHUT_WR)
            while (more := sock.recv(65_536)) and len(got) < MIB:
                got += more
        except TimeoutError:
            raise AssertionError(f"{one.door}: {one.data[:500]!r} got {got[:200]!r}, and no end") from None
        except OSError:  # it was sent away in the middle of its word
            pass
    return got


def judge(seed: int, one: Said, got: bytes, seen: Counter[str]) -> None:
    if one.door != "http":
        seen[f"{one.door} {'answered' if got else 'silent'}"] += 1
        return
    statuses = {int(status) for status in _STATUS.findall(got)} if got else set()
    assert statuses <= STATUSES, f"PENSTOCK_SEED={seed}: {one.data[:500]!r} was answered with {got[:500]!r}"
    seen["http refused" if statuses & {400, 431, 501, 505} else "http taken" if statuses else "http silent"] += 1


def press(server: LiveServer, seeds: range, seen: Counter[str]) -> None:
    """All of them, one after the other; in between somebody with a login is served."""
    address = f"http://{server.ready['http']}/api/overview"
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(seeds.start, seeds.stop, 500):
            some = range(start, min(start + 500, seeds.stop))
            words = [said(seed) for seed in some]
            for seed, one, got in zip(some, words, pool.map(partial(answer, server), words), strict=True):
                judge(seed, one, got, seen)
            assert httpx.get(address, verify=NO_TLS, auth=("guest", "guest"), timeout=20).status_code == 200
            server.connect().channel().queue_declare("served", durable=True)
            server.bury()


def test_words_of_http_and_amqp_that_are_broken(tmp_path: Path, effort: int) -> None:
    seen, count = Counter[str](), 1_500 if effort == 1 else 100_000
    for first in range(SEED, SEED + count, A_LIFE):
        seeds = range(first, min(first + A_LIFE, SEED + count))
        settings = tmp_path / "settings.toml"  # no word is to be refused because others were wrong logins
        settings.write_text("[before_login]\nwrong_logins = 1_000_000\n")
        with HttpServer(tmp_path / str(first), [str(settings)], flight=True) as server:
            assert server.process is not None
            press(server, range(first, first + 50), Counter())  # what is loaded when it is first wanted
            output = server.folder / "output.txt"
            with Watched(server.process.pid, output) as watched:
                began = time.monotonic()
                press(server, seeds, seen)
                done = watched.judge(BOUNDS)
                most = LINES * (2 + int((time.monotonic() - began) / TOLD_S))
                assert done.lines <= most, f"{done.lines} lines were written:\n{done.output[-3000:]}"
            for word in ("Traceback", "bug"):
                assert word not in server.output(), server.output()[-5000:]
            server.stop()
    assert seen["http refused"] > count // 12, seen  # they are broken
    assert seen["http taken"] > count // 40, seen  # and some get through
    assert seen["amqp answered"] > count // 20, seen
    assert seen["flight answered"] > count // 20, seen
