"""`[[link]]` and `[cluster]`: what goes together, and what is said of what does not; numbers of all sections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from penstock.cli.serving import mistakes_inside
from penstock.config.load import in_force, load_file, load_mapping
from penstock.config.settings import Settings
from penstock.errors import SettingsError

GIVEN: dict[str, Any] = {"name": "b", "to": ["penstock://other:8815"], "topic": [{"pattern": "orders"}]}


def read(**more: Any) -> Any:
    return load_mapping({"server": {"name": "a"}, "link": [{**GIVEN, **more}]}, environ={}).link[0]


def test_a_link_has_a_name_addresses_and_topics() -> None:
    link = read(to=["penstock://u:p@one", "penstocks://[::1]:9"])
    assert [str(one) for one in link.targets] == ["penstock://one:8815", "penstocks://[::1]:9"]
    assert [one.location for one in link.targets] == ["grpc://one:8815", "grpc+tls://[::1]:9"]
    assert (link.targets[0].user, link.targets[0].password) == ("u", "p")
    assert not link.sync
    assert link.topic[0].pattern == "orders"


def test_an_upgrade_is_half_of_a_downgrade_where_nothing_is_said() -> None:
    assert read(sync=True, downgrade_after="10s").upgrade == 5_000_000
    assert read(sync=True, downgrade_after="10s", upgrade_after="1s").upgrade == 1_000_000


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"to": []}, "to"),
        ({"to": ["amqp://x"]}, "no address of a site"),
        ({"to": ["penstock://x/vhost"]}, "behind the port"),
        ({"to": ["penstock://x:99999"]}, "no number below 65536"),
        ({"topic": []}, "topic"),
        ({"downgrade_after": "10s"}, "for sync = true"),
        ({"sync": True, "upgrade_after": "10s"}, "goes with downgrade_after"),
        ({"sync": True, "downgrade_after": "1s", "upgrade_after": "2s"}, "longer than downgrade_after"),
        ({"password": "x", "password_file": "y"}, "either a password or a password_file"),
        ({"ca": "ca.pem"}, "is for TLS"),
        ({"certificate": "c.pem"}, "key is missing"),
        ({"topic": [{"pattern": "o("}]}, "missing ): o("),
        ({"topic": [{"pattern": "o", "message_type": "none"}]}, "none"),
        ({"pass_through": ["("]}, "missing )"),
        ({"name": "a"}, "this site's own name"),
        ({"topic": [{"pattern": "o", "vhost": "none"}]}, "no [[vhost]] 'none'"),
    ],
)
def test_what_cannot_be_is_said(given: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError) as told:
        read(**given)
    assert why in str(told.value)


def test_the_name_of_a_local_queue_is_no_topic_of_a_link() -> None:
    queue = {"name": "orders", "kind": "local", "underlying_topic": "other"}
    with pytest.raises(SettingsError, match="local queue"):
        load_mapping({"server": {"name": "a"}, "queue": [queue], "link": [GIVEN]}, environ={})


def test_two_links_have_two_names() -> None:
    with pytest.raises(SettingsError, match="'b' is there twice"):
        load_mapping({"link": [GIVEN, GIVEN]}, environ={})


def test_a_filter_that_cannot_be_is_told_before_a_server_starts() -> None:
    """And before a member follows: at its takeover it would be too late."""
    link = {**GIVEN, "topic": [{"pattern": "p"}, {"pattern": "o", "filter": "/x >"}]}
    with pytest.raises(SettingsError, match=r"topic\[2\].filter"):
        load_mapping({"server": {"name": "a"}, "link": [link]}, environ={}, judge=mistakes_inside)


def test_the_two_sites_of_the_examples_fit_together() -> None:
    folder = Path(__file__).resolve().parents[3] / "examples/sites"
    paris, berlin = (load_file(str(folder / f"{name}.toml"), environ={}) for name in ("paris", "berlin"))
    for here, other in ((paris, berlin), (berlin, paris)):
        [link] = here.link
        assert link.name == other.server.name
        assert [f"{one.host}:{one.port}" for one in link.targets] == [str(other.listen.flight)]
        assert [one.pattern for one in link.topic] == [one.name for one in other.queue]
    doors = [str(getattr(one.listen, door)) for one in (paris, berlin) for door in ("amqp", "http", "flight")]
    assert len(set(doors)) == len(doors), "they run beside each other"


CLUSTER = {"registry": "file:///r", "secret": "sixteen or more characters"}


def test_tls_between_members_takes_all_three_files() -> None:
    files = {"certificate": "c.pem", "key": "c.key", "ca": "ca.pem"}
    section = load_mapping({"cluster": {**CLUSTER, **files}}, environ={}).cluster
    assert section is not None
    assert section.tls == ("c.pem", "c.key", "ca.pem")
    for name in files:
        some = {key: value for key, value in files.items() if key != name}
        with pytest.raises(SettingsError, match="without the rest"):
            load_mapping({"cluster": {**CLUSTER, **some}}, environ={})


def test_a_confirm_waits_for_copies_unless_somebody_says_otherwise() -> None:
    section = load_mapping({"cluster": CLUSTER}, environ={}).cluster
    assert section is not None
    assert (section.confirm, section.tls) == ("in-sync", None)
    with pytest.raises(SettingsError, match="confirm"):
        load_mapping({"cluster": {**CLUSTER, "confirm": "none"}}, environ={})


def test_an_archive_is_of_all_members_or_refused() -> None:
    for archive in ({}, {"folder": "/shared/archive"}, {"shared": True}, {"folder": "archive", "shared": True}):
        with pytest.raises(SettingsError, match="name a folder that all members see, and shared = true"):
            load_mapping({"cluster": CLUSTER, "log": {"archive": archive}}, environ={})
    shared = {"folder": "/shared/archive", "shared": True}
    assert load_mapping({"cluster": CLUSTER, "log": {"archive": shared}}, environ={}).log.archive is not None


def test_members_are_addresses_and_go_with_a_register_that_a_person_keeps() -> None:
    manual = {**CLUSTER, "registry": "manual"}
    section = load_mapping({"cluster": {**manual, "members": ["node-2:8817", "[::1]:8817"]}}, environ={}).cluster
    assert section is not None
    assert section.members == ("node-2:8817", "[::1]:8817")
    for wrong in ("node-2", ":8817", "node-2:http"):
        with pytest.raises(SettingsError, match="is not host:port"):
            load_mapping({"cluster": {**manual, "members": [wrong]}}, environ={})
    with pytest.raises(SettingsError, match="another register tells who there is"):
        load_mapping({"cluster": {**CLUSTER, "members": ["node-2:8817"]}}, environ={})


def _types(annotation: object) -> Iterator[object]:
    yield annotation
    for one in get_args(annotation):
        yield from _types(one)


def _whole_numbers(section: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[tuple[str, Any]]:
    """Of this section and of all below it: its name, and what reads it."""
    if section in seen:
        return
    seen.add(section)
    for name, field in section.model_fields.items():
        within = list(_types(field.annotation))
        if int in within:
            read = TypeAdapter(Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation)
            yield f"{section.__name__}.{name}", read
        for one in within:
            if isinstance(one, type) and issubclass(one, BaseModel):
                yield from _whole_numbers(one, seen)


def test_each_whole_number_duration_and_size_has_an_end() -> None:
    """What no log, no table of Arrow and no call of the system takes is refused where it is written."""
    found, without = 0, list[tuple[str, object]]()
    for name, read in _whole_numbers(Settings, set()):
        found += 1
        for value in (2**53, 2**63, -(2**53), f"{101 * 365}d", f"{2**63}us", f"{2**63}B"):
            with suppress(ValidationError):
                read.validate_python(value)
                without.append((name, value))
    assert found > 50
    assert without == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"log": {"checkpoint_records": 10**12}}, "less than or equal to 1000000000"),
        ({"sql": {"timeout": "5300w"}}, "'5300w' is longer than 100 years, the most there may be"),
    ],
    ids=str,
)
def test_what_is_too_much_is_told_with_its_limit(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told) as caught:
        load_mapping(given, environ={})
    assert next(iter(next(iter(given.values())))) in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"listen": {"amqp": "amqp://u:secret@h"}},
        {"listen": {"http": "u:secret@h:15672"}},
        {"listen": {"flight": "penstock://u:secret@h:99999"}},
        {"spark": {"url": "penstock://u:secret@h:8815"}},
        {"spark": {"url": "penstocks://:secret@h:8815?verify=no&x=1"}},
        {"spark": {"openlineage": "ftp://u:secret@h"}},
        {"spark": {"master": "http://u:secret@h"}},
    ],
    ids=str,
)
def test_an_address_that_is_none_is_told_without_its_password(given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as told:
        load_mapping(given, environ={})
    assert "***@h" in str(told.value)
    assert "secret" not in str(told.value)


def test_no_secret_is_told_among_what_is_in_force() -> None:
    hidden = [
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.ssl.keyPassword",
        "spark.x.token",
    ]
    told = in_force(
        load_mapping(
            {
                "spark": {
                    "openlineage": "http://u:hidden@h:1",
                    "master": "spark://u:hidden@h:1",
                    "conf": {
                        **dict.fromkeys(hidden, "hidden"),
                        "spark.proxy": "http://u:hidden@h",
                        "spark.seen": "yes",
                    },
                },
                "cluster": {"registry": "etcd://u:hidden@h:1", "secret": "hidden" * 4},
            },
            environ={},
        )
    )
    assert not [line for line in told if "hidden" in line[1]]
    values = {name: value for name, value, _ in told}
    assert values["spark.openlineage"] == "http://u:***@h:1"
    assert "spark.seen = yes" in values["spark.conf"]
