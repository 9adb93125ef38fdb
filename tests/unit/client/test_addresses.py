"""Addresses of a cluster of servers: an address for each host."""

from __future__ import annotations

import pytest

from penstock.client.urls import parse_urls, with_trust
from penstock.errors import InvalidArgument
from penstock.spark.pipelines.definition import with_vhost


def test_each_host_has_a_port_of_its_own_and_all_have_the_same_login_and_vhost() -> None:
    found = parse_urls("penstock://me:secret,text@a,b:8816,[::1]/orders")
    assert [(one.host, one.port) for one in found] == [("a", 8815), ("b", 8816), ("::1", 8815)]
    assert {(one.user, one.password, one.vhost, one.tls) for one in found} == {("me", "secret,text", "orders", False)}
    assert [one.host for one in parse_urls("a,b")] == ["a", "b"]
    assert [one.host for one in parse_urls("penstock://a?")] == ["a"]


def test_what_comes_behind_a_question_mark_is_for_all() -> None:
    assert with_trust("penstocks://a:1,[::1]:2,b:3/v", ca="x.pem") == "penstocks://a:1,[::1]:2,b:3/v?ca=x.pem"
    assert with_trust("a:1,[::1]:2", verify="off") == "penstock://a:1,[::1]:2?verify=off"
    found = parse_urls("penstocks://a,b/v?ca=x.pem", user="u")
    assert [(one.host, one.user, one.trust.ca) for one in found] == [("a", "u", "x.pem"), ("b", "u", "x.pem")]


def test_an_address_of_several_hosts_keeps_all_where_its_vhost_or_its_trust_changes() -> None:
    """What splits one URL takes brackets behind a comma for an error, in some releases of Python."""
    login = "penstocks://me:se%2Ccret@a:1,[fe80::1]:2,[::1]"
    assert with_vhost(f"{login}/old?ca=x.pem", "a/b") == f"{login}/a%2Fb?ca=x.pem"
    assert with_vhost(f"{login}/old", "/") == f"{login}/"
    assert with_trust(f"{login}?ca=http://no", ca="x.pem") == f"{login}?ca=x.pem"
    with pytest.raises(InvalidArgument, match="write an IPv6 host in brackets"):
        with_vhost("penstock://a:1,::1", "v")


@pytest.mark.parametrize(
    "host", ["a..b", "x" * 64, "local host", 'loc"al', "lo%20cal", "a<b", "a..ä", "{host}", "$host", "ho\\st"]
)
def test_a_host_that_is_none_is_told_so_with_its_name(host: str) -> None:
    for url in (f"penstock://{host}", f"penstock://a,{host}:8815/v", f"penstocks://u:p@{host}:1"):
        with pytest.raises(InvalidArgument, match="is no address: ") as told:
            parse_urls(url)
        assert f"{host!r} is no host" in str(told.value)


def test_a_host_may_be_a_name_in_any_letters_or_an_address_with_its_scope() -> None:
    found = parse_urls("penstock://Example,b-1.x_y,bücher.example,[fe80::1%eth0]:1,10.0.0.1")
    assert [one.host for one in found] == ["example", "b-1.x_y", "xn--bcher-kva.example", "fe80::1%eth0", "10.0.0.1"]


def test_the_end_of_a_line_behind_an_address_is_not_of_it_and_within_is_refused() -> None:
    assert parse_urls(" penstock://a/v\n")[0].vhost == "v"
    for url in ("penstock://ho\tst", "penstock://a\nb", "a\rb"):
        with pytest.raises(InvalidArgument, match="a tab or the end of a line"):
            parse_urls(url)


def test_a_host_without_a_name_is_refused() -> None:
    for url in ("penstock://a,,b", "", "penstock://"):
        with pytest.raises(InvalidArgument, match="names no host: write penstock://user:password@host:8815/vhost"):
            parse_urls(url)


@pytest.mark.parametrize(
    "url",
    [
        "amqp://me:s3cret@host/v", "penstock://me:s3cret@", "penstock://me:s3cret@host:x", "penstock://me:s3cret@::1",
        "penstock://me:s3cret@host#part", "penstock://me:s3cret@ho st", "penstock://me:s3cret@host?speed=3",
        "penstock://me:s3cret@a\tb", "me:s3cret@host:99999", "penstock://me:s3/cret@host", "penstock://me:s3cret@a,,b",
    ],
)  # fmt: skip
def test_the_password_of_a_wrong_address_is_not_shown(url: str) -> None:
    """What is refused stands in logs."""
    with pytest.raises(InvalidArgument) as refused:
        parse_urls(url)
    assert "cret" not in str(refused.value)
    assert "me" in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "penstock://me:s3/cret@host", "penstock://me:s3?cret@host", "penstock://me:s3#cret@host:1/v",
        "penstock://me:1234/s3cret@host", "penstock://me:12?s3cret@host", "penstock://me/x:s3cret@host",
        "me:1#s3cret@h",
    ],
)  # fmt: skip
def test_a_login_that_a_character_ends_is_told_how_it_is_written(url: str) -> None:
    """What is behind it was taken for a vhost, and shown; or for a port that is no number."""
    with pytest.raises(InvalidArgument, match="%2F, %3F and %23, .* in a vhost @ is %40") as refused:
        parse_urls(url)
    assert "cret" not in str(refused.value)
    assert parse_urls("penstocks://host/v%40x?ca=a@b.pem")[0].vhost == "v@x"


@pytest.mark.parametrize(
    "url", ["penstock://::1:8815", "penstocks://me:x@fe80::1/v", "penstock://::1,b", "penstock://[::1"]
)
def test_an_ipv6_host_stands_in_brackets(url: str) -> None:
    for read in (parse_urls, lambda url: with_trust(url.partition(",")[0], ca="ca.pem")):
        with pytest.raises(InvalidArgument, match=r"write an IPv6 host in brackets, as in penstock://\[::1\]:8815"):
            read(url)
