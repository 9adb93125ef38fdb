"""Files of `[tls]`, who looks after them, and handshakes, without a server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.config.sections import TlsSection
from penstock.errors import SettingsError
from penstock.server.amqp.links import FIRST
from penstock.server.base.faults import reports
from penstock.server.sockets import certificates, tls
from penstock.server.sockets.listening import Entry, Listener, bind
from penstock.server.sockets.strangers import Complaints, Guards, Stranger, Terms
from penstock.server.sockets.tls import Keeper, Peer, load, peer_of
from tls_lab import Files


def section(files: Files, **more: object) -> TlsSection:
    return TlsSection.model_validate({"certificate": files.certificate, "key": files.key, **more})


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "files")


# -- files


def test_what_cannot_be_used_is_told_in_one_sentence(files: Files, tmp_path: Path) -> None:
    junk, empty, pipe = tmp_path / "junk", tmp_path / "empty", tmp_path / "pipe"
    os.mkfifo(pipe)
    junk.write_bytes(os.urandom(2000))
    empty.write_bytes(b"")
    encrypted = tmp_path / "encrypted"
    encrypted.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGjMF8=\n-----END ENCRYPTED PRIVATE KEY-----\n")
    other = Files(tmp_path / "other")
    wrong: list[tuple[dict[str, object], str]] = [
        ({"certificate": str(tmp_path / "absent")}, "tls.certificate: .*absent cannot be read: No such file"),
        ({"certificate": str(tmp_path)}, "tls.certificate: .* cannot be read: Is a directory"),
        ({"certificate": str(pipe)}, "tls.certificate: .*pipe is no regular file"),  # whose end nobody waits for
        ({"key": str(pipe)}, "tls.key: .*pipe is no regular file"),
        ({"ca": "/dev/zero", "verify": "peer"}, "tls.ca: /dev/zero is no regular file"),
        ({"certificate": str(junk)}, "tls.certificate: .*junk holds no certificate in PEM"),
        ({"certificate": files.key}, "tls.certificate: .*server.key holds no certificate in PEM"),
        ({"key": str(empty)}, "tls.key: .*empty holds no private key in PEM"),
        ({"key": files.certificate}, "tls.key: .*server.pem holds no private key in PEM"),
        ({"key": other.key}, "tls.key: .* is not the key of the certificate in .*server.pem"),
        ({"key": str(encrypted)}, "tls.(key|certificate): "),
        ({"ca": str(junk), "verify": "peer"}, "tls.ca: .*junk holds no CA certificates in PEM"),
        ({"ca": str(tmp_path / "no-ca"), "verify": "peer"}, "tls.ca: .*no-ca cannot be read: No such file"),
    ]
    for changed, why in wrong:
        with pytest.raises(SettingsError, match=why) as caught:
            load(section(files, **changed))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_words_beside_the_blocks_are_in_any_encoding_and_nobodys(files: Files, encoding: str) -> None:
    """Bundles have the names of their CAs there; doors are told of what is ASCII."""
    for name in (files.certificate, files.key, files.ca):
        Path(name).write_bytes("Gesch\u00fctzt: \u00fc\n".encode(encoding) + Path(name).read_bytes())
    found = load(section(files, ca=files.ca, verify="peer", fail_if_no_peer_cert=True))
    assert found.ca_pem is not None
    for pem in (found.chain_pem, found.key_pem, found.ca_pem):
        assert "-----BEGIN " in pem.decode("ascii")
    assert len(found.context.get_ca_certs()) == 1


def test_what_is_shown_is_what_goes_together(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are replaced while they are read are taken together or not at all.

    Certificate and key were read twice: what was found to go together was the second, and Flight showed the first.
    """
    read = certificates.read_file

    def replaced(section: str, key: str, name: str) -> bytes:
        found = read(section, key, name)
        if key == "certificate":
            files.sign_server(("next",))
        return found

    monkeypatch.setattr(certificates, "read_file", replaced)
    with pytest.raises(SettingsError, match="is not the key of the certificate"):
        load(section(files))
    monkeypatch.setattr(certificates, "read_file", read)
    assert load(section(files)).certificate.names == ("next",)


def test_what_a_certificate_says(files: Files) -> None:
    found = load(section(files)).certificate
    assert (found.subject, found.issuer) == ("CN=localhost", "CN=Penstock development CA")
    assert found.names == ("localhost", "127.0.0.1")
    assert found.complaint(found.begins) is not None  # a day is near
    assert "is not good before" in str(found.complaint(found.begins.replace(year=2000)))
    assert "ended on" in str(found.complaint(found.ends))
    files.sign_server(days=60)
    long = load(section(files)).certificate
    assert long.complaint(long.begins) is None


# -- what clients show


def odd(files: Files, subject: bytes = b"", *extensions: bytes) -> bytes:
    """A client's certificate, signed, with this subject in the place of `CN=shop`, and extensions behind its own."""
    shown = x509.load_pem_x509_certificate(files.authority.client("shop")[0])
    parts = children(children(shown.public_bytes(serialization.Encoding.DER))[0])
    if subject:
        parts[5] = subject
    own = children(children(parts[7])[0])
    parts[7] = der(0xA3, der(0x30, *own, *(extensions if extensions != (b"twice",) else own[:1])))
    algorithm = children(shown.public_bytes(serialization.Encoding.DER))[1]
    whole = der(0x30, *parts)
    return der(0x30, whole, algorithm, der(0x03, b"\0", files.authority._key.sign(whole, ec.ECDSA(hashes.SHA256()))))


def der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    size = len(body).to_bytes(4, "big").lstrip(b"\0")
    return bytes([tag, *((len(body),) if len(body) < 128 else (0x80 + len(size), *size))]) + body


def children(sequence: bytes) -> list[bytes]:
    found = list[bytes]()
    at, end = inside(sequence, 0)
    while at < end:
        after = inside(sequence, at)[1]
        found.append(sequence[at:after])
        at = after
    return found


def inside(data: bytes, at: int) -> tuple[int, int]:
    size, at = data[at + 1], at + 2
    if size >= 128:
        at, size = at + size - 128, int.from_bytes(data[at : at + size - 128], "big")
    return at, at + size


def called(tag: int, value: bytes) -> bytes:
    return der(0x31, der(0x30, bytes.fromhex("0603550403"), der(tag, value)))


def alternative(tag: int, value: bytes = b"") -> bytes:
    return der(0x30, bytes.fromhex("0603551d11"), der(0x04, der(0x30, der(tag, value))))


UTF8, BITS, INTEGER, NULL, PRINTABLE, T61, IA5, BMP = 0x0C, 0x03, 0x02, 0x05, 0x13, 0x14, 0x16, 0x1E

NAMES: dict[str, tuple[bytes, str | None]] = {
    "none": (b"", None),
    "empty": (called(UTF8, b""), ""),
    "two": (called(UTF8, b"shop") + called(UTF8, b"guest"), None),
    "with NUL": (called(UTF8, b"shop\0.other"), "shop\0.other"),
    "two bytes each": (called(BMP, "shop".encode("utf-16-be")), "shop"),
    "half of two bytes": (called(BMP, b"\0s\0"), None),
    "half of a pair": (called(BMP, b"\xd8\0\0s"), None),
    "very long": (called(UTF8, b"x" * 30_000), "x" * 30_000),
    "no UTF-8": (called(UTF8, b"sh\xff\xfe"), None),
    "T.61": (called(T61, b"sh\xff\xfe"), None),
    "not printable": (called(PRINTABLE, b"sh\xe9"), None),
    "not ASCII": (called(IA5, b"sh\xe9"), None),
    "bits": (called(BITS, b"\0shop"), None),
    "a number": (called(INTEGER, b"\5"), None),
    "null": (called(NULL, b""), None),
    "a list": (called(0x30, b""), None),
}


@pytest.mark.parametrize("name", NAMES)
def test_an_odd_name_in_a_certificate_is_nobody_and_is_shown_as_far_as_it_can_be(files: Files, name: str) -> None:
    subject, user = NAMES[name]
    peer = Peer("TLSv1.3", "", odd(files, der(0x30, subject)))
    assert peer.user() == user
    told = peer.plain()
    if told["peer_cert_subject"] != tls.UNKNOWN:
        assert told["peer_cert_issuer"] == "CN=Penstock development CA"
        assert str(told["peer_cert_validity"]).startswith("20")
    assert user is None or told["peer_cert_subject"] != tls.UNKNOWN


ALTERNATIVES = {
    "an address of three bytes": (alternative(0x87, b"\1\2\3"),),
    "a host that is no ASCII": (alternative(0x82, b"\xff\xfe"),),
    "a URI that is no ASCII": (alternative(0x86, b"\xff\0"),),
    "X.400": (alternative(0xA3),),
    "EDI": (alternative(0xA5),),
    "an extension twice": (b"twice",),
    "logs that are none": (der(0x30, bytes.fromhex("060a2b06010401d679020402"), der(0x04, b"\0\1\2")),),
}


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_odd_names_beside_the_subject_hide_nothing_else_of_a_certificate(files: Files, name: str) -> None:
    shown = odd(files, b"", *ALTERNATIVES[name])
    peer = Peer("TLSv1.3", "", shown)
    assert (peer.user(), peer.plain()["peer_cert_subject"]) == ("shop", "CN=shop")
    found = certificates.read(ssl.DER_cert_to_PEM_cert(shown).encode())  # the server's own is read so, too
    assert (found.subject, found.names) == ("CN=shop", ())


def test_a_certificate_of_a_version_that_is_none_is_nobodys(files: Files) -> None:
    shown = odd(files).replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020107"), 1)
    peer = Peer("TLSv1.3", "", shown)
    assert peer.user() is None
    assert peer.plain()["peer_cert_subject"] == tls.UNKNOWN


# -- who looks after them


class Eyes:
    """A keeper whose looks are taken one by one."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.taken = list[str]()
        keeper.renewed.append(lambda fresh: self.taken.append(fresh.certificate.subject))

    async def beat(self) -> None:
        await self.look(self.keeper._beat)

    async def look(self, begin: Callable[[], None] | None = None) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool:
            self.keeper.start(loop, pool)
            (begin or self.keeper.look)()
            await loop.run_in_executor(pool, lambda: None)  # behind the look
        await asyncio.sleep(0)
        self.keeper.stop()


async def test_changed_files_are_taken_up_and_halves_are_not(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    eyes = Eyes(Keeper(section(files)))
    await eyes.look()
    assert eyes.taken == []
    certificate, key = files.authority.server(("next",))
    files.put(files.key, key)
    await eyes.look()
    assert not caplog.records  # perhaps the other file is being written
    await eyes.look()
    await eyes.look()
    assert [record.getMessage().endswith("loaded before goes on") for record in caplog.records] == [True]  # once
    assert eyes.keeper.current().certificate.names[0] == "localhost"
    files.put(files.certificate, certificate)
    await eyes.look()
    assert eyes.taken == ["CN=next"]
    assert eyes.keeper.current().certificate.names == ("next",)
    assert eyes.keeper.facts()["renewals"] == 1
    files.put(files.certificate, b"")
    await eyes.look()
    await eyes.look()
    assert eyes.keeper.current().certificate.names == ("next",)


async def test_it_looks_by_itself(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.01)
    keeper = Keeper(section(files))
    seen = asyncio.Event()
    keeper.renewed.append(lambda _: seen.set())
    with ThreadPoolExecutor(1) as pool:
        keeper.start(asyncio.get_running_loop(), pool)
        files.sign_server(("next",))
        await asyncio.wait_for(seen.wait(), 20)
        keeper.stop()


FAULTS = {"a look": (tls, "load"), "what is said of a certificate": (tls, "_in_words"), "a beat": (Keeper, "look")}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_in_a_look_is_counted_and_the_next_look_comes(
    name: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    eyes = Eyes(Keeper(section(files)))
    files.sign_server(("next",))
    before = reports.counts["upkeep"]

    def fails(*_: object) -> None:
        raise KeyError("as planted")

    with monkeypatch.context() as planted:
        planted.setattr(*FAULTS[name], fails)
        await eyes.beat()
    assert reports.counts["upkeep"] == before + 1
    await eyes.beat()
    assert eyes.keeper.current().certificate.names == ("next",)
    assert eyes.taken == ["CN=next"]


async def test_a_door_that_fails_to_take_a_certificate_is_told_again_and_the_others_are_told_at_once(
    files: Files,
) -> None:
    eyes, fails, before = Eyes(Keeper(section(files))), [True, True], reports.counts["upkeep"]

    def take(_: object) -> None:
        if fails:
            fails.pop()
            raise KeyError("as planted")
        eyes.taken.append("this one, too")

    eyes.keeper.renewed.insert(0, take)
    files.sign_server(("next",))
    await eyes.beat()
    assert eyes.taken == ["CN=next"]
    for _ in range(3):
        await eyes.beat()
    assert eyes.taken == ["CN=next", "this one, too"]
    assert reports.counts["upkeep"] == before + 2


# -- handshakes


class Echo(asyncio.Protocol):
    """Says back what it hears."""

    met: ClassVar = list[asyncio.BaseTransport]()

    def __init__(self, stranger: Stranger) -> None:
        self.stranger = stranger

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.stranger.known()
        self.transport = transport
        self.met.append(transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@contextlib.asynccontextmanager
async def door(one: TlsSection, terms: Terms | None = None) -> AsyncIterator[tuple[Listener, int]]:
    loop = asyncio.get_running_loop()
    guards = Guards(terms or Terms(), Complaints(loop.call_later), loop.time, loop.call_later)
    found = Entry(guards, loop.time).listener("echo", Echo, Keeper(one).current)
    try:
        yield found, found.open(bind("127.0.0.1", 0))[1]
    finally:
        found.close()


async def says(port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
    try:
        writer.write(b"hello")
        return await asyncio.wait_for(reader.readexactly(5), 20)
    finally:
        writer.close()


def client(files: Files, cert: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    if cert is not None:
        context.load_cert_chain(*cert)
    return context


async def told(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async with asyncio.timeout(20):
        while text not in caplog.text:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0.005)


async def test_slow_ones_end_and_others_do_not_wait(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    async with door(section(files), Terms(time_s=0.3)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01")
        assert await says(port, client(files)) == b"hello"
        assert await asyncio.wait_for(reader.read(), 20) == b""
        await told(caplog, "was sent away: it had not logged in after 0.3 s: its TLS handshake was not over")
        writer.close()


async def test_only_so_many_are_under_way(files: Files) -> None:
    """Further ones wait, and come in when there is room."""
    async with door(section(files), Terms(time_s=0.3, sockets=2)) as (_, port):
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        assert await says(port, client(files)) == b"hello"
        for _, writer in slow:
            writer.close()


async def test_who_has_no_certificate_comes_in_where_none_is_insisted_on(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with door(section(files, ca=files.ca, verify="peer")) as (handshake, port):
        Echo.met.clear()
        assert await says(port, client(files)) == b"hello"
        assert await says(port, client(files, files.client("shop"))) == b"hello"
        shown = [peer_of(transport) for transport in Echo.met]
        assert [peer and peer.user() for peer in shown] == [None, "shop"]
        stranger = Files(tmp_path / "strangers").client("shop")
        with pytest.raises((OSError, EOFError)):
            await says(port, client(files, stranger))
        await told(caplog, "its certificate is not accepted: unable to get local issuer certificate")
        assert handshake.refused == 1


async def test_an_old_version_is_sent_away(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    async with door(section(files, min_version="1.3")) as (_, port):
        old = client(files)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((OSError, EOFError)):
            await says(port, old)
        await told(caplog, "its TLS is older than tls.min_version")
        assert await says(port, client(files)) == b"hello"


async def test_the_same_complaint_is_written_once(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    async with door(section(files)) as (handshake, port):
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"AMQP\x00\x00\x09\x01")
            await reader.read()
            writer.close()
        async with asyncio.timeout(20):
            while handshake.refused < 5:  # noqa: ASYNC110 - it has no event for it
                await asyncio.sleep(0.005)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_a_probe_of_the_port_is_not_told(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    async with door(section(files)) as (handshake, port):
        socket.create_connection(("127.0.0.1", port)).close()
        async with asyncio.timeout(20):
            while not handshake.refused:  # noqa: ASYNC110 - it has no event for it
                await asyncio.sleep(0.005)
    assert not caplog.records


def test_a_read_of_tls_is_larger_than_the_first_of_a_door() -> None:
    """Why `amqp.links.TlsLink` cuts: asyncio hands over as much as its buffer holds."""
    from asyncio.sslproto import SSLProtocol

    assert SSLProtocol.max_size > FIRST
