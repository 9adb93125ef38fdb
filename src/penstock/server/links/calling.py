"""The connection that a link makes to another site: Flight's client, its errors as ours, and what is heard on it.

Parcels that were sent on it and not acknowledged are under way: how many may be, and since when.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import base64
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pyarrow as pa
from pyarrow import flight

from penstock.errors import PenstockError, Unavailable
from penstock.records.schema import CARRIED
from penstock.server.base.faults import reports
from penstock.server.people.users import password_of
from penstock.wire.flight.failures import decode_error, lost
from penstock.wire.flight.linking import Heard, Welcome, read_heard
from penstock.wire.flight.tickets import told_sites

if TYPE_CHECKING:
    from penstock.config.links import LinkSection, Target
    from penstock.core.links.sharing import Site
    from penstock.server.flight.handover import Bell


WELCOME_S = 10.0
SILENT_US = 20_000_000
"""The other site says something every five seconds; after so long it is taken for gone."""
SILENT = f"nothing was heard from it for {SILENT_US // 1_000_000} s"

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
        self._writing = threading.Lock()
        self._client: Any = flight.FlightClient(
            target.location, generic_options=[("grpc.keepalive_time_ms", ALIVE_MS)], **_tls(section, target)
        )
        headers: Any = [(b"authorization", b"Basic " + base64.b64encode(_login(section, target)))]
        options = flight.FlightCallOptions(headers=headers)
        descriptor = flight.FlightDescriptor.for_command(command)
        self._writer, self._reader = self._client.do_exchange(descriptor, options)
        try:
            self._writer.begin(CARRIED)
        except (pa.ArrowException, OSError):
            self.close()
            raise

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
        for end in (self._writer, self._client):
            try:
                with self._writing:  # what is being written has ended by now
                    end.close()  # a writer that nobody closed has Arrow write a line to the server's output
            except (pa.ArrowException, OSError):
                pass  # it was broken before


def closed(connection: Connection) -> None:
    """Cut it, whatever fails at that.  Any thread."""
    try:
        connection.close()
    except Exception as error:  # noqa: BLE001 - nobody needs it any more
        reports.tell(error, "link")


class Reading(threading.Thread):
    """Hears what comes back on one connection."""

    def __init__(
        self, connection: Connection, bell: Bell, acked: Callable[[int, int], None], clock: Callable[[], int]
    ) -> None:
        """clock: microseconds, monotonic."""
        super().__init__(name="penstock-link-acks", daemon=True)
        self.session = 0  # 0: it is not up yet
        self._heard_at = clock()
        self._clock = clock
        self._acked = acked
        self._connection = connection
        self._bell = bell
        self._welcome: Welcome | None = None
        self._came = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            while True:
                heard: Heard = read_heard(self._connection.read())
                self._heard_at = self._clock()
                if heard.ended is not None:
                    raise Unavailable(heard.ended)
                if heard.welcome is not None:
                    self._welcome = heard.welcome
                    self._came.set()
                if heard.ack is not None and self.session:
                    self._acked(heard.ack, self.session)
        except Exception as error:  # noqa: BLE001 - of Flight; whoever writes raises it
            self._error = error
        finally:
            self._came.set()
            self._bell.ring()

    def welcome(self) -> Welcome:
        """What the other site said when the link came up."""
        self._came.wait(WELCOME_S)
        if self._error is not None:
            raise self._error
        if self._welcome is None:
            raise Unavailable(f"it has not answered for {WELCOME_S:.0f} s")
        return self._welcome

    @property
    def silent(self) -> bool:
        """Whether nothing was heard for long."""
        return self._clock() - self._heard_at > SILENT_US

    def check(self) -> None:
        """Raises what has ended the connection."""
        if self._error is not None:
            raise self._error


def _login(section: LinkSection, target: Target) -> bytes:
    user = section.user or target.user or "guest"
    if section.password is None and section.password_file is None:
        secret = target.password or ("guest" if user == "guest" else "")
    else:
        secret = password_of(section)
    return f"{user}:{secret}".encode()


def _tls(section: LinkSection, target: Target) -> dict[str, Any]:
    if not target.tls:
        return {}
    options: dict[str, Any] = {}
    from penstock.server.sockets.certificates import LINK, Files, read_file, trust  # where TLS is used

    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if section.certificate is not None and section.key is not None:
        pems = Files(LINK, section.certificate, section.key, None).fill(probe)
        options |= {"cert_chain": pems.chain, "private_key": pems.key}
    system: Any = ssl.get_default_verify_paths()  # whose file may be None, other than its stub says
    roots: str | None = section.ca or system.cafile
    if roots is not None:
        options["tls_root_certs"] = pem = read_file(LINK, "ca", roots)
        trust(probe, LINK, roots, pem)
    return options


def hello_words(name: str, site: Site, offers: list[Any], sites: Iterable[Site], *, sync: bool) -> bytes:
    """The command by which a link begins."""
    words = {
        "name": name, "site": site.name, "origin": str(site.origin), "group": site.group, "sync": sync,
        "offers": offers, "sites": told_sites(sites),
    }  # fmt: skip
    return orjson.dumps({"link": words})


FLYING_MOST = 32 << 20
PARCELS_MOST = 20_000
"""Bytes of messages, and parcels, that are under way: then the link waits."""


class Flight(NamedTuple):
    """A parcel that was sent.  before: what was told up to there was done with when it went; at: when, microseconds."""

    upto: int
    before: int
    size: int
    at: int


class Flying:
    """Those of one link.  The loop's thread changes it."""

    def __init__(self) -> None:
        self._parcels = deque[Flight]()
        self._bytes = 0

    @property
    def oldest(self) -> Flight | None:
        """What an acknowledgement has to come for next."""
        return self._parcels[0] if self._parcels else None

    @property
    def full(self) -> bool:
        """Whether no more may be sent now.  Any thread."""
        return self._bytes >= FLYING_MOST or len(self._parcels) >= PARCELS_MOST

    def add(self, sent: Flight) -> None:
        self._parcels.append(sent)
        self._bytes += sent.size

    def heard(self, ack: int) -> None:
        """The other site has all up to there."""
        while self._parcels and self._parcels[0].upto <= ack:
            self._bytes -= self._parcels.popleft().size

    def clear(self) -> None:
        """It is told anew."""
        self._parcels.clear()
        self._bytes = 0
