"""Settings files of others: AMPS, Artemis, RabbitMQ.  One reader a format, one result, one writer.

`read_foreign` gives our settings as a mapping, the place of each value in the file it came from, and remarks on what is
different here, comes later, or has no meaning here.  Knows no settings model: `config.load` judges what comes out.
Which format a file has is told by its first bytes and its root; it is read once, for it may be a pipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.config.foreign.converted import Converted, Remark, Verdict, parse_xml, read_bytes
from penstock.errors import SettingsError

__all__ = ["Converted", "Remark", "Verdict", "is_foreign", "read_bytes", "read_foreign"]


def _first(data: bytes) -> bytes:
    """The first byte that says something."""
    return data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()[:1]


def is_foreign(data: bytes) -> bool:
    """Whether a file is XML or JSON rather than TOML, which begins with neither `<` nor `{`."""
    return _first(data) in {b"<", b"{"}


def read_foreign(path: str | Path, environ: Mapping[str, str] | None = None, *, data: bytes | None = None) -> Converted:
    """Our settings out of a foreign file.  Raises SettingsError with every mistake and its line.

    `environ` gives the values of `${NAME}` in AMPS files; `data` is the content where it was read already.
    """
    shown = str(path)
    if data is None:
        data = read_bytes(Path(path), shown)
    if _first(data) == b"{":
        from penstock.config.foreign.rabbitmq import read_definitions

        return read_definitions(data, shown)
    root = parse_xml(data, shown)
    from penstock.config.foreign.amps_elements import SECTIONS
    from penstock.config.foreign.ampsconfig import read_ampsconfig

    if root.name == "AMPSConfig" or root.name in SECTIONS:
        return read_ampsconfig(root, Path(path), environ or {})
    if root.name in {"configuration", "core"}:
        from penstock.config.foreign.artemis import read_broker

        return read_broker(root, shown)
    raise SettingsError(
        f"{root.file}:{root.line}: <{root.name}> begins no settings file that is known here: "
        "there are <AMPSConfig> of AMPS and <configuration> of Artemis"
    )
