"""`penstock tls make`, and what check and doctor say of the files; the page about TLS."""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives import serialization

from penstock import connect
from penstock.client import urls
from penstock.client.urls import Trust, parse_url, reason_of, with_trust
from penstock.config.load import load_text
from penstock.errors import InvalidArgument, Unavailable, shown
from penstock.server.sockets.certificates import read
from penstock.server.sockets.tls import load
from penstock.testing import Broker
from penstock.wire.credentials import LARGEST, read_pem

Run = Callable[..., tuple[int, str, str]]

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "tls.md").read_text()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_the_page_shows_works(run: Run) -> None:
    [command] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    status, out, _ = run(*shlex.split(command)[1:])
    assert status == 0
    said = load(load_text(out).tls)
    assert said.certificate.names == ("localhost", "127.0.0.1")
    for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        settings = load_text(block)
        identity = load(settings.tls)
        assert identity.insists == settings.tls.fail_if_no_peer_cert
    assert Path("certificates/server.key").stat().st_mode & 0o077 == 0


def test_nothing_is_overwritten(run: Run) -> None:
    assert run("tls", "make", "c", "--client", "shop", "--json")[0] == 0
    before = Path("c/ca.pem").read_bytes()
    status, _, err = run("tls", "make", "c")
    assert status == 2
    assert "c has files of ca, server already" in err
    assert Path("c/ca.pem").read_bytes() == before
    for bad in ("../x", "ca", ""):
        assert run("tls", "make", "d", "--client", bad)[0] == 2
    assert run("tls", "make", "d", "--host", "bücher.example")[0] == 2
    assert not Path("d").exists()


def test_check_and_doctor_look_at_the_files(run: Run) -> None:
    run("tls", "make", "c", "--days", "3")
    doors = '[listen]\namqp = "127.0.0.1:0"\nhttp = "off"\nflight = "off"\namqps = "127.0.0.1:0"\n'
    Path("p.toml").write_text(f'{doors}[tls]\ncertificate = "c/server.pem"\nkey = "c/server.key"\n')
    assert run("check", "p.toml")[0] == 0
    found = {one["name"]: one for one in json.loads(run("doctor", "p.toml", "--json")[1])["findings"]}
    assert found["amqps door"]["verdict"] == "good"
    assert found["TLS certificate"]["verdict"] == "poor"  # three days
    assert "c/server.pem: CN=localhost, for localhost, 127.0.0.1, ::1, 3 days left" in found["TLS certificate"]["found"]
    Path("c/server.key").unlink()
    for command in (["check", "p.toml"], ["serve", "p.toml", "--data", "data"]):
        status, _, err = run(*command)
        assert status == 2
        assert err.startswith("penstock: p.toml:8: [tls] key: c/server.key cannot be read: No such file or directory")
    status, out, _ = run("doctor", "p.toml", "--json")
    assert status == 1
    assert [one["verdict"] for one in json.loads(out)["findings"] if one["name"] == "TLS certificate"] == ["bad"]


def test_check_and_doctor_look_at_what_other_servers_are_shown(run: Run) -> None:
    run("tls", "make", "c", "--days", "3", "--client", "east")
    cluster = (
        '[cluster]\nname = "home"\nregistry = "etcd://127.0.0.1:1"\nsecret = "sixteen letters!"\nca = "c/ca.pem"\n'
    )
    link = '[[link]]\nname = "east"\nto = ["penstocks://127.0.0.1:1"]\ntopic = [{ pattern = "a" }]\n'
    Path("p.toml").write_text(
        f'{cluster}certificate = "c/server.pem"\nkey = "c/server.key"\n'
        f'[server]\nname = "here"\n{link}certificate = "c/east.pem"\nkey = "c/east.key"\n'
    )

    def found() -> dict[str, str]:
        told = json.loads(run("doctor", "p.toml", "--json")[1])["findings"]
        return {one["name"]: one["verdict"] for one in told if one["name"].startswith("TLS")}

    assert run("check", "p.toml")[0] == 0
    assert found() == {"TLS certificate, cluster": "poor", "TLS certificate, link east": "poor"}  # three days
    Path("c/server.key").write_bytes(Path("c/east.key").read_bytes())
    Path("c/east.key").unlink()
    status, _, err = run("check", "p.toml")
    assert status == 2
    assert err.startswith("penstock: p.toml:7: [cluster] key: c/server.key is not the key of the certificate in c/serv")
    assert err.count("p.toml:") == 1  # a link alone is down: the server serves
    assert found() == {"TLS certificate, cluster": "bad", "TLS certificate, link east": "bad"}


def test_a_password_file_that_is_not_there_is_told_with_its_line(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "p.toml"
    for lines, why in ((None, "cannot be read: No such file or directory"), ("", "has no password in its first line")):
        if lines is not None:
            (tmp_path / "secret").write_text(lines)
        config.write_text(f'[[user]]\nname = "ann"\npassword_file = "{tmp_path}/secret"\n')
        for command in (["check", str(config)], ["serve", str(config), "--data", str(tmp_path / "data")]):
            status, _, err = run(*command)
            assert (status, err.splitlines()[0]) == (
                2, f'penstock: {config}:3: [[user]] "ann" password_file: {tmp_path}/secret {why}',
            )  # fmt: skip


# -- addresses


def test_an_address_says_whom_it_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CA", "CERT", "KEY"):
        monkeypatch.delenv(f"PENSTOCK_TLS_{name}", raising=False)
    found = parse_url("penstocks://h/v?ca=/a%20b&cert=c&key=k")
    assert (found.vhost, found.trust) == ("v", Trust("/a b", "c", "k"))
    assert parse_url("penstocks://h?verify=off").trust == Trust(verify=False)
    assert parse_url("penstocks://h?verify=off", verify=True).trust == Trust()
    assert parse_url("penstocks://h?ca=x", ca="y").trust == Trust("y")
    monkeypatch.setenv("PENSTOCK_TLS_CA", "of-environment")
    assert parse_url("penstocks://h").trust == Trust("of-environment")
    assert parse_url("penstocks://h?ca=x").trust == Trust("x")
    assert parse_url("penstock://h").trust == Trust()
    assert "secret" not in str(parse_url("penstocks://u:secret@h?ca=x"))
    told = with_trust("penstocks://h/v?ca=x", ca="/a b", cert=None, verify="off")
    assert parse_url(told).trust == Trust("/a b", verify=False)
    assert with_trust("penstock://h", ca=None) == "penstock://h"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("penstock://h?ca=x", "ca is for TLS"),
        ("penstocks://h?cert=x", "cert is given and key is not"),
        ("penstocks://h?verify=no", "verify is 'no', not on or off"),
        ("penstocks://h?cacert=x", "'cacert' in the address means nothing"),
        ("penstocks://h?ca=x#y", "fragment"),
    ],
)
def test_what_an_address_cannot_say(url: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(why)):
        parse_url(url)


@pytest.mark.parametrize(
    "host",
    [
        "", " ", "a b", "a ", "a..b", ".a", "a.", "-a", "a-", "a:8816", "127.0.0.1:8816", "[::1]", "[::1]:1", "::1%lo",
        "1.2.3", "256.1.1.1", "10.0.0.0/8", "*", "*.org", "a.*.org", "w*.a.org", "*.*.a.org", "https://a", "a/b", "b\n",
        "u@a", "b\u00fccher.example", "a" * 64, ".".join(["a" * 50] * 6),
    ],
)  # fmt: skip
def test_a_certificate_is_made_for_hosts_alone(run: Run, host: str) -> None:
    """What is none was written into it, and no client ever came to such a host."""
    status, _, err = run("tls", "make", "d", "--host", "a.org", "--host", host)
    assert (status, Path("d").exists()) == (2, False)
    assert f"host {shown(host)} of a certificate is neither a host name in ASCII" in err


def test_a_certificate_may_be_for_addresses_of_both_kinds_and_for_all_hosts_of_a_domain(run: Run) -> None:
    hosts = [
        "a.org",
        "*.a.org",
        "my_host",
        "x-1.local",
        "3com.com",
        "xn--bcher-kva.example",
        "::1",
        "2001:db8::1",
        "192.0.2.1",
    ]
    assert run("tls", "make", "d", *(word for host in hosts for word in ("--host", host)))[0] == 0
    assert sorted(read(Path("d/server.pem").read_bytes()).names) == sorted(hosts)


def test_files_that_are_not_there_are_told() -> None:
    os.mkfifo("pipe")
    Path("huge").write_bytes(b"-" * (LARGEST + 1))
    Path("junk").write_bytes(b"junk")
    Path("broken").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for verify in (True, False):  # who verifies nothing has named a file all the same
        for ca, why in (
            ("absent", "cannot be read: No such file"),
            (".", "cannot be read: Is a directory"),
            ("pipe", "is no regular file"),  # whose end nobody waits for
            ("/dev/zero", "is no regular file"),
            ("huge", "has more than 1048576 bytes"),
            ("a\0b", "cannot be read: embedded null byte"),
            ("junk", "holds no certificate in PEM"),
            ("broken", "holds a certificate that cannot be used: "),
        ):
            trust = Trust(ca, verify=verify)
            for made in (partial(trust.options, "h"), trust.context):
                with pytest.raises(InvalidArgument, match=f"ca: {ca} {why}"):
                    made()
    for cert, why in (("junk", "holds no certificate in PEM"), ("pipe", "is no regular file")):
        with pytest.raises(InvalidArgument, match=f"cert: {cert} {why}"):
            Trust(None, cert, "junk").options("h")


def test_what_a_client_trusts_is_what_was_found_good(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """The file of a CA was read twice: gRPC was given the first reading, and the second was judged."""
    assert run("tls", "make", "a", "--client", "shop")[0] == 0
    ca, broken = Path("a/ca.pem"), b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    good = ca.read_bytes()

    def replaced(file: str) -> bytes:
        found = read_pem(file)
        ca.write_bytes(broken)
        return found

    monkeypatch.setattr(urls, "read_pem", replaced)
    assert Trust(str(ca)).options("h") == {"tls_root_certs": good}


def test_a_client_has_files_of_tls_where_the_system_has_none_in_memory(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Linux alone has such; a client may run elsewhere."""
    assert run("tls", "make", "a", "--client", "shop")[0] == 0
    monkeypatch.delattr(os, "memfd_create")
    os.mkdir("kept")
    monkeypatch.setattr(tempfile, "tempdir", "kept")
    trust = Trust("a/ca.pem", "a/shop.pem", "a/shop.key")
    assert trust.options("h")["private_key"] == Path("a/shop.key").read_bytes()
    assert trust.context().get_ca_certs()
    assert not os.listdir("kept"), "a key is left behind"


def test_a_certificate_and_a_key_that_do_not_go_together_are_told_before_anybody_is_asked(run: Run) -> None:
    assert run("tls", "make", "a", "--client", "shop")[0] == 0
    assert run("tls", "make", "b", "--client", "shop")[0] == 0
    assert set(Trust("a/ca.pem", "a/shop.pem", "a/shop.key").options("h")) == {
        "tls_root_certs", "cert_chain", "private_key",
    }  # fmt: skip
    key = serialization.load_pem_private_key(Path("a/shop.key").read_bytes(), None)
    kind, locked = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    Path("locked.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, locked))
    Path("broken.key").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    for cert, file, why in (
        ("a/shop.pem", "b/shop.key", "key: b/shop.key is not the key of the certificate in a/shop.pem"),
        ("a/shop.key", "a/shop.pem", "cert: a/shop.key holds no certificate in PEM"),
        ("a/shop.pem", "a/shop.pem", "key: a/shop.pem holds no private key in PEM"),
        ("a/shop.pem", "locked.key", "key: locked.key is encrypted"),
        ("a/shop.pem", "broken.key", "cert: a/shop.pem and key: broken.key cannot be used: "),
    ):
        with pytest.raises(InvalidArgument, match=re.escape(why)):
            Trust("a/ca.pem", cert, file).options("h")
    with pytest.raises(InvalidArgument, match=r"ca: a/shop\.key holds no certificate in PEM"):
        Trust("a/shop.key").options("h")


def test_reasons_are_told_in_words() -> None:
    assert reason_of("x Peer name h is not in peer certificate", "h", tls=True) == "its certificate is not for 'h'"
    assert "may want a certificate of its client's, in cert and key" in str(reason_of("Socket closed", "h", tls=True))
    assert "one of penstocks://" in str(reason_of("Socket closed", "h", tls=False))
    ended, issuer = (f"x certificate verify failed: {why}: y" for why in ("certificate has expired", "no local issuer"))
    assert reason_of(ended, "h", tls=True) == "its certificate is not accepted (certificate has expired)"
    assert "(no local issuer): is its CA the one in ca, and does" in str(reason_of(issuer, "h", tls=True))
    assert reason_of("Connection refused", "h", tls=False) is None


def test_whoever_names_the_port_of_another_door_is_told_which_one_is_meant() -> None:
    with Broker() as broker:
        for url in (broker.amqp_url, broker.http_url):
            with (
                pytest.raises(Unavailable, match="the port of Flight is wanted, 8815 unless"),
                connect(f"penstock://guest:guest@127.0.0.1:{urlsplit(url).port}") as client,
            ):
                client.queues()
