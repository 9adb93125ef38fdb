"""How long publishers are remembered: our own setting, and AMPS's element for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.load import load_file
from penstock.errors import SettingsError

XML = """<AMPSConfig><Name>x</Name><TransactionLog><JournalDirectory>./d</JournalDirectory>
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
    assert kept(tmp_path, "a.xml", XML.format(value)) == micros
