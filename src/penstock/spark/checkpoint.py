"""A query's checkpoint folder, as far as we read and mend it: Spark owns its contents.

    metadata           {"id": query id}
    offsets/<n>        v1, one line of batch metadata, then one line a source: its offset as JSON
    commits/<n>        there when batch n is done

Spark does not sync these files, so a power cut can leave the newest ones empty, which stops a query for good.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from penstock.errors import PreconditionFailed


def local_folder(location: str | None) -> Path | None:
    """The folder of a checkpoint location on this machine; None for another file system or none."""
    if not location:
        return None
    if location.startswith("file:"):
        return Path("/" + location[5:].lstrip("/"))
    return None if "://" in location else Path(location)


class Checkpoint:
    """One folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def exists(self) -> bool:
        """Whether a query has started here."""
        return (self.folder / "metadata").exists()

    def query_id(self) -> str:
        """The id of the query, for as long as the checkpoint lives.  PreconditionFailed when there is none."""
        try:
            found: Any = json.loads((self.folder / "metadata").read_text())
            return str(found["id"])
        except (OSError, ValueError, KeyError, TypeError):
            raise PreconditionFailed(f"the checkpoint {self.folder} has no query id in its file metadata") from None

    def offsets(self, batch: int) -> list[dict[str, Any]]:
        """Where each source of a batch ends, in the order of the sources."""
        path = self.folder / "offsets" / str(batch)
        try:
            lines = path.read_text().splitlines()
        except OSError as error:
            raise PreconditionFailed(f"the checkpoint has no {path}: {error.strerror}") from None
        out: list[dict[str, Any]] = []
        for line in lines[2:]:
            value: Any = json.loads(line) if line != "-" else {}
            out.append(cast("dict[str, Any]", value) if isinstance(value, dict) else {})
        return out

    def planned_batch(self, batch: int) -> int | None:
        """The batch of the one queue-mode stream that Spark's batch ends at; None at the very start.

        PreconditionFailed when the query reads several such streams.
        """
        found = [offset["batch"] for offset in self.offsets(batch) if isinstance(offset.get("batch"), int)]
        if len(found) > 1:
            raise PreconditionFailed("a query over several queues cannot settle one of them with its commit")
        return int(found[0]) if found and found[0] else None

    def settled(self, batch: int, streams: Sequence[str]) -> list[tuple[str, int]]:
        """Of these streams of queues, which all are sources of the query, the batches that Spark's batch ends at.

        One whose first message is still to come is not among them.  PreconditionFailed for offsets of other streams.
        """
        out: list[tuple[str, int]] = []
        for offset in self.offsets(batch):
            stream, number = offset.get("stream"), offset.get("batch")
            if not isinstance(number, int) or not number:
                continue
            name = stream if isinstance(stream, str) else streams[0] if len(streams) == 1 else None
            if name is None or name not in streams:
                raise PreconditionFailed(
                    f"the checkpoint {self.folder} is at batch {number} of stream {stream!r}, and the query reads "
                    f"{', '.join(streams)}"
                )
            out.append((name, number))
        return out

    def inputs(self, batch: int) -> list[tuple[str, int, int]]:
        """The queues that a batch of Spark's ends in: stream, its batch, and the number of the server that has it."""
        out: list[tuple[str, int, int]] = []
        for offset in self.offsets(batch):
            stream, number, origin = offset.get("stream"), offset.get("batch"), offset.get("origin")
            if isinstance(stream, str) and isinstance(number, int) and isinstance(origin, int) and number > 0:
                out.append((stream, number, origin))
        return out

    def sweep(self) -> list[Path]:
        """Remove the newest files if they are empty, which a power cut leaves and Spark cannot read."""
        removed: list[Path] = []
        for name in ("offsets", "commits"):
            for path in sorted(self._numbered(name), key=lambda path: int(path.name), reverse=True):
                if path.stat().st_size:
                    break
                for file in (path, path.with_name(f".{path.name}.crc")):
                    file.unlink(missing_ok=True)
                removed.append(path)
        return removed

    def _numbered(self, name: str) -> Iterator[Path]:
        folder = self.folder / name
        if folder.is_dir():
            yield from (path for path in folder.iterdir() if path.name.isdigit())
