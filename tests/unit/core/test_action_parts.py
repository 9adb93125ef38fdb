"""The pure parts of actions: templates, variables, schedules, and how often one may set off the next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock.core.acted import Hops
from penstock.core.action_rules import Happening, Rules, Template, words
from penstock.errors import ExpressionError, InvalidArgument
from penstock.records import properties as header_codec
from penstock.records.cron import parse_schedule
from penstock.records.event_actions import (
    Action,
    EchoStep,
    ExtractStep,
    IncrementStep,
    OnDelete,
    OnExpire,
    OnPublish,
    OnSchedule,
    PublishStep,
    QueryStep,
    Step,
    Trigger,
    unfit,
)

NOON = int(datetime(2026, 11, 20, 12, 0, tzinfo=UTC).timestamp()) * 1_000_000  # a Friday


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1_000_000


def rendered(text: str, data: bytes = b"", **given: str) -> bytes:
    happening = Happening(NOON, "one", "orders", data, reason=given.pop("reason", ""), bookmark="1|2|")
    happening.added = {name: value.encode() for name, value in given.items()}
    return Template(text).render(happening)


@pytest.mark.parametrize(
    ("text", "data", "expected"),
    [
        ('{"message": {{AMPS_DATA}}}', b'{"a": 1}', b'{"message": {"a": 1}}'),
        ('{"message": "{{AMPS_DATA}}"}', b'{"a": "\\n"}\n', rb'{"message": "{\"a\": \"\\n\"}\n"}'),
        (r'{"a": "\"{{AMPS_DATA}}"}', b'"', rb'{"a": "\"\""}'),
        ('"{{AMPS_DATA}}" {{AMPS_DATA}} "{{AMPS_DATA}}"', b'"', b'"\\"" " "\\""'),
        ("{{AMPS_DATA_LENGTH}} {{AMPS_TOPIC}} {{AMPS_BOOKMARK}}", b"abc", b"3 orders 1|2|"),
        (
            "{{AMPS_DATETIME}} {{AMPS_UNIX_TIMESTAMP}} {{AMPS_INSTANCE_NAME}}",
            b"",
            b"2026-11-20T12:00:00Z 1795176000 one",
        ),
        ('a{{AMPS_BYTE_01}}b{{AMPS_BYTE_FF}}"{{AMPS_BYTE_0A}}"', b"", b'a\x01b\xff"\\n"'),
        ("{{amps_data}} {{}} {{ AMPS_DATA }}", b"x", b"known {{}} {{ AMPS_DATA }}"),
    ],
)
def test_variables_are_escaped_in_quotes_and_pasted_elsewhere(text: str, data: bytes, expected: bytes) -> None:
    assert rendered(text, data, amps_data="known") == expected


def test_a_correlation_id_comes_from_the_header() -> None:
    header = header_codec.encode(header_codec.Properties(correlation_id="c-1"))
    happening = Happening(0, "", properties=header)
    assert Template("{{AMPS_CORRELATION_ID}}").render(happening) == b"c-1"
    assert Template("{{AMPS_CORRELATION_ID}}").render(Happening(0, "")) == b""


EXPIRE, SCHEDULE = OnExpire("q"), OnSchedule("4h")


@pytest.mark.parametrize(
    ("on", "do", "why"),
    [
        ((EXPIRE,), (PublishStep("t", "{{AMPS_DATUM}}"),), "no variable {{AMPS_DATUM}} there; there are AMPS_INSTANCE"),
        ((SCHEDULE,), (PublishStep("t"),), "{{AMPS_DATA}}"),
        ((EXPIRE, OnDelete("q")), (EchoStep("{{AMPS_REASON}}"),), "{{AMPS_REASON}}"),
        ((OnPublish("q"),), (EchoStep("{{AMPS_REASON}}"),), "{{AMPS_REASON}}"),
        ((EXPIRE,), (EchoStep("{{N}}"), IncrementStep("c", "N")), "{{N}}"),
        ((EXPIRE,), (EchoStep("{{AMPS_BYTE_0G}}"),), "{{AMPS_BYTE_0G}}"),
        ((EXPIRE,), (ExtractStep((("9", "/a"),)),), "'9' is no name of a variable"),
        ((EXPIRE,), (PublishStep("{{NOWHERE}}", "x"),), "{{NOWHERE}}"),
        ((EXPIRE,), (QueryStep("q", "FOUND", default="{{FOUND}}"),), "{{FOUND}}"),
    ],
)
def test_unknown_variables_are_told(on: tuple[Trigger, ...], do: tuple[Step, ...], why: str) -> None:
    [wrong] = unfit(Action("a", on, do))
    assert why in wrong.why
    with pytest.raises(InvalidArgument, match="action 'a'"):
        Rules([Action("a", on, do)])


def test_what_a_step_adds_is_there_for_those_behind_it() -> None:
    do = (
        ExtractStep((("ID", "/id"),)),
        IncrementStep("{{ID}}", "N"),
        PublishStep("t", "{{ID}} {{N}} {{AMPS_BYTE_7F}}"),
    )
    assert not list(unfit(Action("a", (EXPIRE, OnDelete("q")), do)))


@pytest.mark.parametrize(
    "action", [Action("a", (EXPIRE,), (EchoStep(""),), "/a >"), Action("a", (OnPublish("t", "/ ="),), ())]
)
def test_expressions_that_cannot_be_read_are_refused(action: Action) -> None:
    with pytest.raises(ExpressionError):
        Rules([action])


def test_a_command_is_parted_before_anything_is_filled_in() -> None:
    assert words("notify 'two words' {{AMPS_DATA}}") == ["notify", "two words", "{{AMPS_DATA}}"]
    for command in ("'open", "  "):
        with pytest.raises(InvalidArgument):
            words(command)


@pytest.mark.parametrize(
    ("text", "after", "then"),
    [
        ("4h", "2026-11-20T12:00:00+00:00", "2026-11-20T16:00:00+00:00"),
        ("02:00Z", "2026-11-20T12:00:00+00:00", "2026-11-21T02:00:00+00:00"),
        ("12:00Z", "2026-11-20T12:00:00+00:00", "2026-11-21T12:00:00+00:00"),
        ("12:01Z", "2026-11-20T12:00:00+00:00", "2026-11-20T12:01:00+00:00"),
        ("Saturday at 11:00Z", "2026-11-20T12:00:00+00:00", "2026-11-21T11:00:00+00:00"),
        ("friday at 11:00Z", "2026-11-20T12:00:00+00:00", "2026-11-27T11:00:00+00:00"),
        ("Friday at 12:30Z", "2026-11-20T12:00:00+00:00", "2026-11-20T12:30:00+00:00"),
        ("02:00", "2026-11-20T12:00:00+00:00", "2026-11-20T21:00:00+00:00"),  # five hours east
        ("Saturday at 02:00", "2026-11-20T12:00:00+00:00", "2026-11-20T21:00:00+00:00"),
    ],
)
def test_the_next_time_of_a_schedule(text: str, after: str, then: str) -> None:
    assert parse_schedule(text).after(at(after), timezone(timedelta(hours=5))) == at(then)


def test_a_schedule_in_the_zone_of_the_machine_comes_within_a_day() -> None:
    then = parse_schedule("02:00").after(NOON, None)
    assert NOON < then <= NOON + 25 * 3_600_000_000
    assert datetime.fromtimestamp(then / 1e6, UTC).astimezone().hour == 2


@pytest.mark.parametrize("text", ["soon", "24:00", "02:60", "Someday at 11:00", "4", "1us", "02:00 Z", ""])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_schedule(text)


def test_hops_are_known_for_what_actions_published() -> None:
    hops = Hops()
    assert hops.of(5) == 0
    hops.add(10, 12, 1)
    hops.add(12, 13, 1)
    hops.add(20, 21, 3)
    assert [hops.of(lsn) for lsn in (9, 10, 12, 13, 19, 20, 21)] == [0, 1, 1, 0, 0, 3, 0]


def test_whether_some_message_of_a_batch_was_published_by_an_action() -> None:
    hops = Hops()
    hops.add(10, 12, 1)
    hops.add(20, 21, 1)
    found = [hops.any(first, end) for first, end in ((1, 10), (1, 11), (11, 12), (12, 20), (12, 21), (21, 30))]
    assert found == [False, True, True, False, True, False]
