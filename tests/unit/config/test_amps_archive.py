"""AMPS's element for old journals: the archive of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.foreign import read_foreign
from penstock.config.load import load_file

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
