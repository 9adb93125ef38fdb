"""`[cluster]`: what goes together."""

from __future__ import annotations

import pytest

from penstock.config.load import load_mapping
from penstock.errors import SettingsError

GIVEN = {"registry": "file:///r", "secret": "sixteen or more characters"}


def test_tls_between_members_takes_all_three_files() -> None:
    files = {"certificate": "c.pem", "key": "c.key", "ca": "ca.pem"}
    section = load_mapping({"cluster": {**GIVEN, **files}}, environ={}).cluster
    assert section is not None
    assert section.tls == ("c.pem", "c.key", "ca.pem")
    for name in files:
        some = {key: value for key, value in files.items() if key != name}
        with pytest.raises(SettingsError, match="without the rest"):
            load_mapping({"cluster": {**GIVEN, **some}}, environ={})


def test_a_confirm_waits_for_copies_unless_somebody_says_otherwise() -> None:
    section = load_mapping({"cluster": GIVEN}, environ={}).cluster
    assert section is not None
    assert (section.confirm, section.tls) == ("in-sync", None)
    with pytest.raises(SettingsError, match="confirm"):
        load_mapping({"cluster": {**GIVEN, "confirm": "none"}}, environ={})


def test_an_archive_is_of_all_members_or_refused() -> None:
    for archive in ({}, {"folder": "/shared/archive"}, {"shared": True}, {"folder": "archive", "shared": True}):
        with pytest.raises(SettingsError, match="name a folder that all members see, and shared = true"):
            load_mapping({"cluster": GIVEN, "log": {"archive": archive}}, environ={})
    shared = {"folder": "/shared/archive", "shared": True}
    assert load_mapping({"cluster": GIVEN, "log": {"archive": shared}}, environ={}).log.archive is not None


def test_members_are_addresses_and_go_with_a_register_that_a_person_keeps() -> None:
    manual = {**GIVEN, "registry": "manual"}
    section = load_mapping({"cluster": {**manual, "members": ["node-2:8817", "[::1]:8817"]}}, environ={}).cluster
    assert section is not None
    assert section.members == ("node-2:8817", "[::1]:8817")
    for wrong in ("node-2", ":8817", "node-2:http"):
        with pytest.raises(SettingsError, match="is not host:port"):
            load_mapping({"cluster": {**manual, "members": [wrong]}}, environ={})
    with pytest.raises(SettingsError, match="another register tells who there is"):
        load_mapping({"cluster": {**GIVEN, "members": ["node-2:8817"]}}, environ={})
