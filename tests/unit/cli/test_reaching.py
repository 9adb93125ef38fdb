"""The address of the server that pipelines are given: one that executors reach, or a sentence."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Self

import pytest

from penstock.cli.driver_jobs import (
    Door,
    address_for,
    address_here,
    door_of,
    groups,
    is_here,
    master_host,
    own_address,
    url_for,
)
from penstock.cli.supervisor import Supervisor
from penstock.config.load import load_mapping
from penstock.errors import SettingsError
from tls_lab import Files

HERE = "spark://127.0.0.1:7077"
AWAY = "spark://192.0.2.7:7077"  # RFC 5737: nobody's
NOWHERE = "spark://no-such-machine.invalid:7077"


def settings(**spark: Any) -> Any:
    return load_mapping({"spark": spark}, environ={}, options={})


@pytest.mark.parametrize(
    ("master", "flight", "url"),
    [
        ("local[*]", "127.0.0.1:8815", "penstock://127.0.0.1:8815/"),
        ("local[2]", "0.0.0.0:8815", "penstock://127.0.0.1:8815/"),
        ("local-cluster[2,1,512]", "[::]:8815", "penstock://127.0.0.1:8815/"),
        (HERE, "127.0.0.1:8815", "penstock://127.0.0.1:8815/"),
        (HERE, "0.0.0.0:8815", "penstock://127.0.0.1:8815/"),
        (AWAY, "10.0.0.5:8815", "penstock://10.0.0.5:8815/"),
        (NOWHERE, "server.example:8815", "penstock://server.example:8815/"),
        ("yarn", "[2001:db8::5]:8815", "penstock://[2001:db8::5]:8815/"),
    ],
)
def test_the_address_is_that_of_the_listener_as_executors_see_it(master: str, flight: str, url: str) -> None:
    assert address_for(settings(), master, Door(flight)) == url


@pytest.mark.parametrize(
    ("master", "flight", "told"),
    [
        (AWAY, "127.0.0.1:8815", "where executors of spark://192.0.2.7:7077 on other machines do not reach the server"),
        (NOWHERE, "[::1]:8815", "on other machines do not reach the server"),
        ("yarn", "localhost:8815", "on other machines do not reach the server"),
        ("yarn", "0.0.0.0:8815", "yarn does not say which address of this machine executors reach"),
        (NOWHERE, "0.0.0.0:8815", "is not known \\(no-such-machine.invalid: "),
    ],
)
def test_what_no_executor_would_reach_is_told_with_what_to_do(master: str, flight: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told) as caught:
        address_for(settings(), master, Door(flight))
    assert "in listen.flight, or the whole in url of [spark]" in str(caught.value)
    named = settings(url="penstock://10.0.0.5:8815")
    assert address_for(named, master, Door(flight)) == "penstock://10.0.0.5:8815/"


def test_a_listener_on_all_addresses_is_told_by_the_one_that_leads_to_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[Any]()

    class Probe:
        def __init__(self, *kind: object) -> None: ...
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *exc: object) -> None: ...
        def connect(self, address: object) -> None:
            asked.append(address)

        def getsockname(self) -> tuple[str, int]:
            return "192.0.2.1", 40_000

    monkeypatch.setattr(socket, "socket", Probe)
    own_address.cache_clear()
    assert address_for(settings(), AWAY, Door("0.0.0.0:8815")) == "penstock://192.0.2.1:8815/"
    assert [address[0] for address in asked] == ["192.0.2.7"]
    own_address.cache_clear()


def test_the_machine_of_a_master() -> None:
    assert master_host("spark://a.example:7077,b.example:7077") == "a.example"
    assert master_host("k8s://https://[2001:db8::1]:6443") == "2001:db8::1"
    assert master_host("yarn") is None
    assert is_here("127.0.0.1")
    assert not is_here("192.0.2.7")
    assert address_here(settings(), Door("[::1]:1")) == "penstock://[::1]:1/"


def test_a_door_with_tls_is_trusted_by_the_certificate_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path, hosts=("localhost", "server.example"))
    section = {"certificate": files.certificate, "key": files.key}

    def having(**tls: Any) -> Any:
        listen = {"flight": "off", "flight_tls": "0.0.0.0:8816"}
        return load_mapping({"listen": listen, "tls": {**section, **tls}}, environ={}, options={})

    monkeypatch.delenv("PENSTOCK_TLS_CERT", raising=False)
    found = having()
    door = door_of(found)
    assert (door, door_of(settings())) == (Door("0.0.0.0:8816", tls=True), Door("127.0.0.1:8815"))
    assert door_of(load_mapping({"listen": {"flight": "off"}}, environ={}, options={})) is None
    assert door is not None
    local = f"penstocks://localhost:8816/?ca={files.certificate}"
    assert [address_for(found, master, door) for master in ("local[*]", HERE)] == [local, local]
    assert address_here(found, Door("server.example:1", tls=True)).startswith("penstocks://server.example:1/")
    with pytest.raises(SettingsError, match="executors of spark://192.0.2.7:7077 cannot know whom to trust") as caught:
        address_for(found, AWAY, door)
    assert "url of [spark], as in penstocks://server.example:8816?ca=/etc" in str(caught.value)

    strict = having(ca=files.ca, verify="peer", fail_if_no_peer_cert=True)
    with pytest.raises(SettingsError, match="each client shows a certificate: name one in url of \\[spark\\]"):
        address_here(strict, door)
    monkeypatch.setenv("PENSTOCK_TLS_CERT", "client.pem")
    assert address_here(strict, door) == local
    named = "penstocks://server.example:8816/?ca=ca.pem"
    told = strict.model_copy(update={"spark": settings(url=named).spark})
    assert address_here(told, door) == address_for(told, AWAY, door) == named


def test_up_says_so_before_anything_starts() -> None:
    pipeline = {"name": "p", "sql": "SELECT id FROM input", "from": {"topic": "t", "columns": "id BIGINT"}}
    given = {"pipeline": [{**pipeline, "to": [{"topic": "out"}]}], "spark": {"master": AWAY}}
    found = load_mapping(given, environ={}, options={})
    with pytest.raises(SettingsError, match="do not reach the server"):
        Supervisor(found, ready_file=None)
    [(name, mine)] = groups(found).items()
    with pytest.raises(SettingsError, match="first user, guest, who is refused from other machines"):
        url_for(found, mine, Door("10.0.0.5:1"))
    found = load_mapping({**given, "user": [{"name": "flow", "password": "f"}]}, environ={}, options={})
    assert (name, url_for(found, mine, Door("10.0.0.5:1"))) == ("driver", "penstock://10.0.0.5:1/")


@pytest.mark.parametrize("url", ["10.0.0.5:8815", "penstock://10.0.0.5", "penstock://u:p@h:1", "penstock://h:1/v"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(SettingsError, match="is not the address of a server"):
        settings(url=url)
