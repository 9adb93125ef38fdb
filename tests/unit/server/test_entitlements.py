"""Which entitlement decides, what nobody allowed, and how two filters become one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from penstock.config.load import load_mapping
from penstock.config.vhost_sections import EntitlementSection
from penstock.errors import AccessRefused, ExpressionError, SettingsError
from penstock.expr import Filter
from penstock.records.queue_settings import QueueSettings
from penstock.server.people.entitlements import Entitlements, Rights, narrowed

TAGS = {"root": ("administrator",), "watch": ("monitoring",)}


def rights(user: str, *entries: Mapping[str, object]) -> Rights:
    sections = [EntitlementSection.model_validate(dict(entry)) for entry in entries]
    found = Entitlements(sections, lambda name: TAGS.get(name, ())).rights(user)
    assert found is not None
    return found


def text(right: bool | Filter) -> bool | str:
    return right if isinstance(right, bool) else right.text


def test_without_entitlements_nothing_is_limited() -> None:
    assert Entitlements((), lambda _: ()).rights("ann") is None


def test_the_first_that_fits_decides_and_what_none_allows_is_refused() -> None:
    ann = rights(
        "ann",
        {"user": "bob", "topic": "orders", "read": True},
        {"topic": "orders", "read": "/n > 1"},
        {"topic": "^ord", "read": True, "write": True},
    )
    assert text(ann.reads_topic("/", "", "orders")) == "/n > 1"
    assert ann.writes_topic("/", "", "orders") is False
    assert ann.reads_topic("/", "", "order") is True
    assert ann.reads_topic("/", "", "other") is False
    assert ann.reads_topic("/", "amq.topic", "orders") is False
    assert ann.reads_topic("shop", "", "orders") is False
    assert ann.reads_queue("/", "orders") is False
    with pytest.raises(AccessRefused, match="access to topic 'other' in vhost '/' refused for user 'ann'"):
        ann.read_topic("/", "", "other")


@pytest.mark.parametrize(
    ("who", "user", "allowed"),
    [
        ({"user": "ann"}, "ann", True),
        ({"user": "ann"}, "anna", False),
        ({"user": "^an"}, "anna", True),
        ({"tag": "administrator"}, "root", True),
        ({"tag": "administrator"}, "watch", False),
        ({"tag": "administrator", "user": "ann"}, "root", False),
        ({}, "anybody", True),
    ],
)
def test_an_entitlement_is_about_users_by_name_pattern_or_tag(who: Mapping[str, str], user: str, allowed: bool) -> None:
    assert rights(user, {**who, "queue": "q", "read": True}).reads_queue("/", "q") is allowed


def test_one_without_topic_and_queue_is_about_both() -> None:
    one = rights("ann", {"read": True})
    assert one.reads_topic("/", "amq.topic", "a.b") is True
    assert one.reads_queue("/", "q") is True
    assert one.writes_queue("/", "q") is False
    assert one.sees_queue("/", "q")
    assert not one.sees_queue("shop", "q")


def test_who_may_declare() -> None:
    plain, view = QueueSettings(), QueueSettings(underlying_topic="secret")
    ann = rights("ann", {"queue": "^mine", "read": True})
    ann.declare("/", "mine.1", plain, None)
    for name, settings in (("mine.1", view), ("other", plain), ("mine.1", QueueSettings(dead_letter_exchange=""))):
        with pytest.raises(AccessRefused):
            ann.declare("/", name, settings, None)
    with pytest.raises(AccessRefused, match="for users with the tag 'administrator'"):
        ann.configure("binding a queue")
    root = rights("root", {"user": "nobody"})
    root.declare("/", "other", view, None)
    root.configure("binding a queue")


def test_a_part_of_a_queue_is_not_all_of_it() -> None:
    with pytest.raises(AccessRefused, match="purging needs the right to read all of queue 'q'"):
        rights("ann", {"queue": "q", "read": "/n = 1"}).read_all_of_queue("/", "q", "purging")
    rights("ann", {"queue": "q", "read": True}).read_all_of_queue("/", "q", "purging")


def test_both_filters_have_to_match() -> None:
    right = cast("Filter", rights("ann", {"queue": "q", "read": "/a = 1 OR /a = 2"}).reads_queue("/", "q"))
    chosen = narrowed("/b = 1 OR /b = 2", right)
    assert chosen is not None
    messages = [b'{"a": 1, "b": 2}', b'{"a": 1, "b": 3}', b'{"a": 3, "b": 1}']
    assert chosen.matches(messages) == [True, False, False]
    assert narrowed(None, None) is None
    assert narrowed(None, right) is right
    with pytest.raises(ExpressionError) as caught:
        narrowed("1 = 1) OR (1 = 1", right)
    assert caught.value.text == "1 = 1) OR (1 = 1"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"topic": "t", "queue": "q"}, "an entitlement is for a topic or for a queue; write two"),
        ({"queue": "q", "exchange": "e"}, "an exchange goes with a topic"),
        ({"topic": "a("}, "'a(' is no RE2 pattern"),
        ({"user": "[", "queue": "q"}, "'[' is no RE2 pattern"),
        ({"queue": "q", "read": 1}, "read"),
        ({"queue": "q", "vhost": "shop"}, "there is no [[vhost]] 'shop'"),
        ({"queue": "q", "reads": True}, "reads: unknown key; did you mean 'read'?"),
    ],
)
def test_an_entitlement_that_cannot_be_is_refused(entry: Mapping[str, object], why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_mapping({"entitlement": [entry]})
    assert why in str(caught.value)


def test_an_expression_of_an_entitlement_is_read_at_the_start() -> None:
    with pytest.raises(SettingsError, match=r"\[\[entitlement\]\] number 1 read"):
        rights("ann", {"queue": "q", "read": "/a ="})
