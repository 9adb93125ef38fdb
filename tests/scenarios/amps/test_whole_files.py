"""AMPSConfig as a whole: no element, module or section of the documents is left out of the examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.config.foreign import read_foreign
from penstock.config.foreign.amps_actions import DO, ON
from penstock.config.load import judged, load_file
from penstock.errors import SettingsError
from penstock.testing import Broker

HERE = Path(__file__).resolve().parent

ELEMENTS = re.findall(
    r"\w+",
    """
    Name Topic MessageType UnderlyingTopic DefaultPublishTarget LeasePeriod Semantics MaxBacklog
    MaxPerSubscriptionBacklog Expiration ExpirationModel Filter RecoveryPoint FairnessModel Leasing MaxDeliveries
    MaxCancels Priority BarrierExpression FileBackedMetadata TargetQueueDepth DeferredAckExpiration InitialOwner
    GroupLocalQueueDomain
    """,
)
"""Those of the reference's tables of queues; `Topic` is its synonym of `Name`."""

TAGS = ("Queue", "QueueDefinition", "LocalQueue", "GroupLocalQueue")

PROGRAM = "amps-action-do-execute-system"
"""The one module that no file alone can turn on."""


def whole(tmp_path: Path, inside: str) -> Path:
    path = tmp_path / "amps.xml"
    path.write_text(f"<AMPSConfig><Name>one</Name>{inside}</AMPSConfig>")
    return path


def told(path: Path) -> list[str]:
    return [f"{one.verdict.value}: {one.place.told(one.text)}" for one in judged(read_foreign(str(path), {}))]


def test_every_element_of_the_tables_is_in_the_example() -> None:
    text = (HERE / "every-element.xml").read_text()
    assert [name for name in (*ELEMENTS, *TAGS) if f"<{name}>" not in text] == []
    keys = set(re.findall(r"^(\w+) = ", (HERE / "every-element.toml").read_text(), re.MULTILINE))
    ours = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in ELEMENTS} - {"topic", "priority"}
    assert ours | {"priority_expression", "kind"} <= keys


def test_every_module_that_is_run_is_in_the_example() -> None:
    named = set(re.findall(r"<Module>(.+)</Module>", (HERE / "actions.xml").read_text()))
    assert named == {*ON, *DO} - {PROGRAM}


def test_a_program_is_run_where_the_server_allows_it(tmp_path: Path) -> None:
    step = f"<Do><Module>{PROGRAM}</Module><Options><Command>true</Command></Options></Do>"
    when = "<On><Module>amps-action-on-schedule</Module><Options><Every>4h</Every></Options></On>"
    path = whole(tmp_path, f"<Actions><Action>{when}{step}</Action></Actions>")
    with pytest.raises(SettingsError, match=r"programs are run only with server\.allow_execute = true"):
        load_file(str(path), environ={})
    settings = load_file(str(path), environ={"PENSTOCK_SERVER__ALLOW_EXECUTE": "true"})
    assert settings.action[0].do


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("amps-action-do-minidump", "'amps-action-do-minidump' is not run here$"),
        ("amps-action-do-rotate-error-log", "'amps-action-do-rotate-error-log' is not run here$"),
        ("amps-action-do-publish-mesage", "'amps-action-.*' is not run here; did you mean 'publish-message'"),
        (
            "amps-action-do-remove-journal",
            "'amps-action-.*' is not run here: leave the action out, for .log. ",
        ),
    ],
)
def test_an_action_of_another_module_is_not_done_here(tmp_path: Path, module: str, why: str) -> None:
    when = "<On><Module>amps-action-on-schedule</Module><Options><Every>4h</Every></Options></On>"
    path = whole(tmp_path, f"<Actions><Action>{when}<Do><Module>{module}</Module></Do></Action></Actions>")
    with pytest.raises(SettingsError, match=f":1: <Module> of <Do>: not done here: {why}"):
        load_file(str(path), environ={})


@pytest.mark.parametrize(
    ("section", "verdict"),
    [
        ("Admin", "no meaning here"),
        ("Transports", "no meaning here"),
        ("Logging", "no meaning here"),
        ("MiniDumpDirectory", "no meaning here"),
        ("Modules", "no meaning here"),
        ("Authentication", "differs here"),
    ],
)
def test_a_section_that_changes_nothing_is_told_and_taken(tmp_path: Path, section: str, verdict: str) -> None:
    path = whole(tmp_path, f"<{section}><Module>some</Module></{section}>")
    [remark] = told(path)
    assert remark.startswith(f"{verdict}: {path}:1: <{section}>: ")
    assert read_foreign(str(path), {}).settings == {"server": {"name": "one"}}
    assert load_file(str(path), environ={}).server.name == "one"


def test_the_name_of_a_local_queue_may_not_be_replicated(tmp_path: Path) -> None:
    """As AMPS forbids it."""
    queue = "<LocalQueue><Name>Here</Name><MessageType>json</MessageType></LocalQueue>"
    inner = (
        "<Name>other</Name><Topic><Name>Here</Name><MessageType>json</MessageType></Topic><SyncType>sync</SyncType>"
        "<Transport><InetAddr>other:10005</InetAddr><Type>amps-replication</Type></Transport>"
    )
    path = whole(tmp_path, f"<SOW>{queue}</SOW><Replication><Destination>{inner}</Destination></Replication>")
    with pytest.raises(SettingsError, match="'Here' is the name of a local queue, of which each site has its own"):
        load_file(str(path), environ={})


def test_a_topic_of_a_queue_needs_no_line_of_its_own(tmp_path: Path) -> None:
    """Neither in `TransactionLog` nor among the topics of `SOW`: told, logged, and there after a crash."""
    log = "<TransactionLog><Topic><Name>Other</Name><MessageType>json</MessageType></Topic></TransactionLog>"
    inner = "<Name>q</Name><MessageType>json</MessageType><UnderlyingTopic>Work</UnderlyingTopic>"
    path = whole(tmp_path, f"{log}<SOW><Queue>{inner}</Queue></SOW>")
    [remark] = told(path)
    assert "its topic 'Work' is not in <TransactionLog>: what a queue sees is always logged here" in remark
    with Broker(str(path)) as broker:
        broker.publish("Work", b"job")
        broker.crash()
        broker.restart()
        assert [record.body for record in broker.sow("q")] == [b"job"]
        assert [message.body for message in broker.subscribe("Work", bookmark="EPOCH").take()] == [b"job"]


def test_a_topic_of_the_transaction_log_is_kept_though_no_queue_takes_it(tmp_path: Path) -> None:
    topics = "".join(f"<Topic><Name>{name}</Name><MessageType>json</MessageType></Topic>" for name in ("audit", "^x"))
    with Broker(str(whole(tmp_path, f"<TransactionLog>{topics}</TransactionLog>"))) as broker:
        broker.publish("audit", b"kept")
        broker.publish("xyz", b"kept too")
        assert broker.publish("other", b"gone") == ""
        broker.crash()
        broker.restart()
        assert [message.body for message in broker.subscribe("audit", bookmark="EPOCH").take()] == [b"kept"]
        assert [message.body for message in broker.subscribe("xyz", bookmark="EPOCH").take()] == [b"kept too"]


def test_bodies_of_any_kind_are_stored_and_delivered_and_have_no_fields(tmp_path: Path) -> None:
    inner = "<Name>q</Name><MessageType>json</MessageType><MaxPerSubscriptionBacklog>9</MaxPerSubscriptionBacklog>"
    bodies = [b'{"a": 1}', b"a=1\x01b=2\x01", b"<a>1</a>", b"\x00\xff", b""]
    with Broker(str(whole(tmp_path, f"<SOW><Queue>{inner}</Queue></SOW>"))) as broker:
        for body in bodies:
            broker.publish("q", body)
        assert [record.body for record in broker.sow("q", filter="/a = 1")] == [b'{"a": 1}']
        assert [message.body for message in broker.subscribe("q", max_backlog=9).take()] == bodies
