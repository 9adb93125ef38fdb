"""Elements of AMPS one by one: types and schemas, the archive, how long publishers are remembered; each has its row."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from message_samples import AVRO, ORDER, SAMPLES, order_file
from penstock.config.foreign import read_foreign
from penstock.config.foreign.amps_elements import QUEUE
from penstock.config.load import load_file
from penstock.errors import SettingsError
from penstock.records.message_types import untyped
from penstock.testing import Broker


def written(folder: Path, types: str, kind: str, more: str = "") -> Path:
    """A file of AMPS with these types and a queue whose bodies are of one of them."""
    found = folder / "amps.xml"
    found.write_text(
        f"<AMPSConfig><MessageTypes>{types}</MessageTypes><SOW><Topic><Name>t</Name><MessageType>{kind}</MessageType>"
        f"<Key>/id</Key></Topic><Queue><Name>q</Name><UnderlyingTopic>t</UnderlyingTopic><MessageType>{kind}"
        f"</MessageType></Queue></SOW>{more}</AMPSConfig>"
    )
    return found


def declared(name: str, module: str, **parts: str) -> str:
    inner = "".join(f"<{tag}>{text}</{tag}>" for tag, text in parts.items())
    return f"<MessageType><Name>{name}</Name><Module>{module}</Module>{inner}</MessageType>"


def of_protobuf(folder: Path) -> str:
    """The type of orders, whose files are in `folder`."""
    (folder / "proto").mkdir()
    files = descriptor_pb2.FileDescriptorSet(file=[order_file()])
    (folder / "proto/shop.pb").write_bytes(files.SerializeToString())
    return declared("orders", "protobuf", ProtoPath="proto", ProtoFile="shop.proto", Type="shop.Order")


def test_protobuf_is_read_as_protoc_has_it(tmp_path: Path) -> None:
    settings = load_file(written(tmp_path, of_protobuf(tmp_path), "orders"))
    assert settings.queue[0].settings.message_type == settings.topic[0].message_type
    assert settings.topic[0].message_type.startswith("protobuf:")


def test_avro_too_and_bodies_are_read_by_it(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    path = written(tmp_path, declared("orders", "avro", SchemaFile="order.avsc"), "orders")
    assert load_file(path).topic[0].message_type == AVRO
    sample = SAMPLES["avro"]
    with Broker(path) as broker:
        broker.publish("t", sample.body({"id": 7}))
        assert len(broker.sow("t", filter="/id = 7")) == 1


def test_a_name_for_a_type_that_needs_none_is_that_type(tmp_path: Path) -> None:
    converted = read_foreign(written(tmp_path, declared("mine", "nvfix"), "mine"))
    assert converted.settings["topic"] == [{"name": "t", "message_type": "nvfix", "key": ["/id"]}]


@pytest.mark.parametrize(
    ("types", "why"),
    [
        (declared("orders", "protobuf", ProtoFile="gone.proto", Type="a.B"), "protoc --include_imports"),
        (declared("orders", "protobuf", ProtoFile="gone.proto"), "has no <Type>"),
        (declared("orders", "avro"), "has no <SchemaFile>"),
        (declared("orders", "avro", SchemaFile="gone.avsc"), "gone.avsc: No such file"),
        (declared("orders", "avro", SchemaFiel="x"), "did you mean 'SchemaFile'"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, types: str, why: str) -> None:
    with pytest.raises(SettingsError, match=r"amps\.xml:1: ") as told:
        load_file(written(tmp_path, types, "orders"))
    assert why in str(told.value)


@pytest.mark.parametrize(
    ("types", "kind", "why"),
    [
        ("", "avro", "'avro' needs a schema: declare a <MessageType> in <MessageTypes>, with <Module>avro</Module>"),
        ("", "avro", "<Name>, <SchemaFile>, and use its name here"),
        ("", "protobuf", "<Name>, <ProtoFile>, <Type>, and use its name here"),
        (declared("mine", "composite-local"), "mine", "'mine' is of the module composite-local (line 1)"),
        (declared("orders", "nvfix"), "ordres", "gives a name; did you mean 'orders'?"),
        ("", "struct", "'struct' is no message type: there is json"),
    ],
)
def test_a_type_that_nothing_declares_is_told_in_words_of_the_file(
    tmp_path: Path, types: str, kind: str, why: str
) -> None:
    with pytest.raises(SettingsError, match=r'amps\.xml:1: <MessageType> of <Topic> "t": ') as told:
        load_file(written(tmp_path, types, kind))
    assert why in str(told.value)
    assert "penstock" not in str(told.value)


def test_a_type_of_what_has_no_meaning_here_is_nobodys_mistake(tmp_path: Path) -> None:
    transport = "<Transports><Transport><MessageType>struct</MessageType></Transport></Transports>"
    load_file(written(tmp_path, "", "json", transport))


@pytest.mark.parametrize("path", ["proto", "protos;proto", ";proto"])
def test_a_path_of_protobuf_may_have_a_name(tmp_path: Path, path: str) -> None:
    of_protobuf(tmp_path)
    file = "protos/shop.proto" if path.startswith("protos;") else "shop.proto"
    types = declared("orders", "protobuf", ProtoPath=path, ProtoFile=file, Type="shop.Order")
    assert load_file(written(tmp_path, types, "orders")).topic[0].message_type.startswith("protobuf:")


def test_expressions_of_an_action_read_what_its_message_type_says(tmp_path: Path) -> None:
    action = (
        "<Actions><Action><On><Module>amps-action-on-publish-message</Module><Options><Topic>t</Topic>"
        "<MessageType>nvfix</MessageType><Filter>/qty > 5</Filter></Options></On><Do>"
        "<Module>amps-action-do-extract-values</Module><Options><MessageType>nvfix</MessageType>"
        "<Data>{{AMPS_DATA}}</Data><Value>N=/qty</Value></Options></Do></Action></Actions>"
    )
    converted = read_foreign(written(tmp_path, "", "nvfix", action))
    [one] = converted.settings["action"]  # type: ignore[misc]
    told = json.dumps(one)
    assert "[nvfix] /qty > 5" in told
    assert untyped("[nvfix] /qty")[0] == "nvfix"
    assert '[nvfix] /qty"' in told


XML = """<AMPSConfig><Name>x</Name><TransactionLog><JournalDirectory>./d</JournalDirectory>
<JournalArchiveDirectory>{}</JournalArchiveDirectory></TransactionLog></AMPSConfig>"""


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        ("/var/old", "'/var/old': closed files of the log are kept there as Parquet"),
        ("./old", "'./old': closed files of the log are kept there as Parquet, below the data folder"),
    ],
)
def test_old_journals_go_to_the_archive(tmp_path: Path, folder: str, told: str) -> None:
    file = tmp_path / "amps.xml"
    file.write_text(XML.format(folder))
    archive = load_file(file).log.archive
    assert archive is not None
    assert archive.folder == folder
    assert told in "\n".join(map(str, read_foreign(file).remarks))


ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "proofs" / "amps.md").read_text()


def test_every_element_of_a_queue_has_a_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert sorted(set(QUEUE) - {"Topic"} - rows) == []


def test_every_example_has_a_row() -> None:
    examples = (ROOT / "tests" / "scenarios" / "amps").glob("*.xml")
    assert sorted(path.name for path in examples if f"`tests/scenarios/amps/{path.name}`" not in PAGE) == []


EXPIRATION = """<AMPSConfig><Name>x</Name><TransactionLog><JournalDirectory>./d</JournalDirectory>
<InactiveClientAckExpiration>{}</InactiveClientAckExpiration></TransactionLog></AMPSConfig>"""


def kept(folder: Path, name: str, text: str) -> int | None:
    file = folder / name
    file.write_text(text)
    return load_file(file).log.publisher_expiration


def test_for_ever_unless_said_otherwise(tmp_path: Path) -> None:
    assert kept(tmp_path, "a.toml", "") is None
    assert kept(tmp_path, "a.toml", '[log]\npublisher_expiration = "30d"') == 30 * 86_400_000_000
    with pytest.raises(SettingsError, match="publisher_expiration"):
        kept(tmp_path, "a.toml", '[log]\npublisher_expiration = "0s"')


@pytest.mark.parametrize(("value", "micros"), [("30d", 30 * 86_400_000_000), ("90", 90_000_000), ("0", None)])
def test_the_element_of_amps(tmp_path: Path, value: str, micros: int | None) -> None:
    assert kept(tmp_path, "a.xml", EXPIRATION.format(value)) == micros
