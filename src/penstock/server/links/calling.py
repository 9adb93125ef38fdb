"""The connection that a link makes to another site: Flight's client, and its errors as ours."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import base64
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from penstock.errors import PenstockError, SettingsError, Unavailable
from penstock.records.schema import CARRIED
from penstock.wire.flight.failures import decode_error, lost

if TYPE_CHECKING:
    from penstock.config.links import LinkSection, Target

ALIVE_MS = 300_000
"""A connection on which nothing moves is probed so often: gRPC's servers refuse more; beats come sooner anyway."""


def ours(error: BaseException, target: Target) -> PenstockError:
    """An error of Flight as the other site meant it; a broken connection as Unavailable."""
    if isinstance(error, PenstockError):
        return error
    text, extra = str(error), getattr(error, "extra_info", None)
    found = decode_error(text, extra if isinstance(extra, bytes) else None)
    if found is not None:
        return found
    return Unavailable(f"{target} cannot be reached: {lost(text)}")


class Connection:
    """One DoExchange.  One thread writes, one reads; any closes."""

    def __init__(self, section: LinkSection, target: Target, command: bytes) -> None:
        """SettingsError for files that cannot be read; errors of Flight."""
        self._client: Any = flight.FlightClient(
            target.location, generic_options=[("grpc.keepalive_time_ms", ALIVE_MS)], **_tls(section, target)
        )
        headers: Any = [(b"authorization", b"Basic " + base64.b64encode(_login(section, target)))]
        options = flight.FlightCallOptions(headers=headers)
        descriptor = flight.FlightDescriptor.for_command(command)
        self._writer, self._reader = self._client.do_exchange(descriptor, options)
        self._writing = threading.Lock()
        self._writer.begin(CARRIED)

    def read(self) -> bytes:
        """The next words.  Raises what ended the stream; Unavailable where the other side has no more to say."""
        while True:
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                with self._writing:
                    self._writer.close()  # which raises why, if there was a reason
                raise Unavailable("the other site has ended the link") from None
            if chunk.app_metadata is not None:
                words: bytes = chunk.app_metadata.to_pybytes()
                return words

    def write(self, words: bytes, rows: pa.RecordBatch | None = None) -> None:
        """A parcel, or words alone."""
        with self._writing:
            if rows is None:
                self._writer.write_metadata(pa.py_buffer(words))
            else:
                self._writer.write_with_metadata(rows, pa.py_buffer(words))

    def close(self) -> None:
        """Cut it: whoever reads or writes is told."""
        self._reader.cancel()
        try:
            self._client.close()
        except pa.ArrowException:
            pass  # it was broken before


def _login(section: LinkSection, target: Target) -> bytes:
    user = section.user or target.user or "guest"
    if section.password is not None:
        secret = section.password.get_secret_value()
    elif section.password_file is not None:
        secret = _read("password_file", section.password_file).decode(errors="replace").partition("\n")[0].rstrip("\r")
    else:
        secret = target.password or ("guest" if user == "guest" else "")
    return f"{user}:{secret}".encode()


def _tls(section: LinkSection, target: Target) -> dict[str, Any]:
    if not target.tls:
        return {}
    options: dict[str, Any] = {}
    if section.certificate is not None and section.key is not None:
        options["cert_chain"] = _read("certificate", section.certificate)
        options["private_key"] = _read("key", section.key)
    system: Any = ssl.get_default_verify_paths()  # whose file may be None, other than its stub says
    roots: str | None = section.ca or system.cafile
    if roots is not None:
        options["tls_root_certs"] = _read("ca", roots)
    return options


def _read(name: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise SettingsError(f"{name} of a link: {file} cannot be read: {error.strerror or error}") from error
