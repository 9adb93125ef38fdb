"""What `penstock doctor` looks at: Python, the disk's own sync time, the log, ports, limits, memory, Java, internal
errors, forgotten streams and links to other sites; `clusters` has the rest of a cluster of servers.

Each finding is good, poor (it works, not well) or bad (it cannot serve).  Nothing is changed: the file written to time
the disk is removed again, and no data folder is made.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from penstock.cli.child_process import children, listens, lock_holder, serving_elsewhere, serving_process
from penstock.cli.driver_jobs import Door, address_here, door_of, login, orphans
from penstock.cli.output import counted
from penstock.errors import PenstockError, SettingsError
from penstock.expr import TopicPattern
from penstock.log.disk import OsDisk, to_be
from penstock.server.base.allowed import Machine, budget_within
from penstock.server.sockets.listening import OWN
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.config.links import LinkSection
    from penstock.config.sections import Address
    from penstock.config.settings import Settings
    from penstock.config.vhost_sections import Queue


SYNCS = 21
SLOW_SYNC_MS = 20.0
FEW_FILES = 4096
LITTLE_DISK = 2**30
REACH_S = 2.0
LOOPBACK = ("127.", "localhost", "[::1]", "0.0.0.0", "[::]")
ASK_S = 3.0
"""How long the server may take to answer."""


class Finding(NamedTuple):
    name: str
    verdict: Literal["good", "poor", "bad"]
    found: str
    advice: str = ""


def _door_processes(settings: Settings, server: int | None) -> Iterator[Finding]:
    """Those that take clients beside the server."""
    doors = settings.listen.doors()
    if "amqp" in doors or "amqps" in doors:
        yield amqp_processes(settings, server)
    if "http" in doors or "https" in doors:
        yield http_process(settings, server)
    if "flight" in doors or "flight_tls" in doors:
        yield flight_process(settings, server)


def examine(settings: Settings) -> list[Finding]:
    """Everything, in the order of a person's questions."""
    doors, data = settings.listen.doors(), Path(settings.server.data)
    if (server := serving_process(data)) is None:
        server, data = serving_elsewhere([one.port for one in doors.values() if one.port]) or (None, data)
    folder, follows = nearest_folder(data), server != lock_holder(data)
    findings = [python(), *disk(folder)]
    if server is not None:
        does = "follows with" if follows else "serves"
        findings.append(Finding("data folder", "good", f"{folder}, which process {server} {does} at present"))
    else:
        findings += log_of(data)
    findings += [port(name, address, server) for name, address in doors.items()]
    findings += _door_processes(settings, server)
    findings += [*certificates(settings), files(), memory(settings.server.memory)]
    if server is not None:
        findings += taking_over(settings) if follows else _leading(settings)
    findings += examine_links(settings)
    needed = bool(settings.pipeline) or any(one.engine == "spark" for one in settings.view)
    findings.append(java(needed=needed, here=settings.spark.master.startswith("local")))
    if settings.server.sync != "commit":
        advice = 'a confirmed message may be lost in a power cut; the default "commit" prevents it'
        findings.append(Finding("durability", "poor", f'sync = "{settings.server.sync}"', advice))
    return findings


def _leading(settings: Settings) -> Iterator[Finding]:
    """What the server that runs and leads says of itself, where it can be asked."""
    door = door_of(settings)
    if door is not None and not door.listens.endswith(":0"):
        yield from (alarms(settings, door), internal_errors(settings, door), streams(settings, door))
        if settings.link:
            yield from running_links(settings, door)


def nearest_folder(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


def python() -> Finding:
    """The interpreter; an older one than 3.11 does not come this far."""
    found = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    return Finding("Python", "good", found)


def disk(folder: Path) -> Iterator[Finding]:
    """Free space, and the median time of an fdatasync of 4 KiB."""
    free = shutil.disk_usage(folder).free
    advice = "below 1 GiB the log soon refuses publishes" if free < LITTLE_DISK else ""
    yield Finding("free disk", "poor" if advice else "good", f"{format_size(free)} at {folder}", advice)
    try:
        took = sync_times_ms(folder)
    except OSError as error:
        yield Finding("disk sync", "bad", f"{folder}: {error.strerror or error}", "the data folder must be writable")
        return
    median, worst = took[len(took) // 2], took[-1]
    found = f"{median:.2f} ms (worst of {len(took)}: {worst:.2f} ms)"
    if median > SLOW_SYNC_MS:
        yield Finding(
            "disk sync", "poor", found, "a confirm takes at least as long: use a disk with a safe write cache"
        )
    else:
        yield Finding("disk sync", "good", found)


def log_of(data: Path) -> Iterator[Finding]:
    """Whether the log of a folder that no server holds can be opened, by the rules of a start; nothing of a new one.

    That files are where they belong and follow each other, and what the last one says; not the sums of all, which take
    as long as reading it all does.
    """
    from penstock.log.segment import FOLDER, first_lsn
    from penstock.server.upkeep.offline import ReadOnly

    what = "data folder"
    try:
        if not any(first_lsn(name) is not None for name in os.listdir(data / FOLDER)):
            return
        with closing(ReadOnly(OsDisk(data))) as log:
            found = f"{data}: the log goes to LSN {log.recovery.last_lsn}"
    except FileNotFoundError:
        return  # there is none yet
    except PenstockError as error:
        yield Finding(what, "bad", f"{data}: {error}", error.to_do)
    except OSError as error:
        told = f"{error.filename or data}: {error.strerror or error}"
        yield Finding(what, "bad", told, "the server's user must be able to read and write all of it")
    else:
        yield Finding(what, "good", found)


def sync_times_ms(folder: Path) -> list[float]:
    """Milliseconds of `SYNCS` syncs of 4 KiB each into a file of this folder, sorted."""
    block = os.urandom(4096)
    took: list[float] = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".penstock-doctor-") as file:
        os.pwrite(file.fileno(), bytes(4096 * SYNCS), 0)
        os.fsync(file.fileno())
        for turn in range(SYNCS):
            os.pwrite(file.fileno(), block, 4096 * turn)
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - start) * 1000)
    return sorted(took)


def amqp_processes(settings: Settings, server: int | None = None) -> Finding:
    """How many processes take AMQP's clients, and whether those of the server that runs are there."""
    from penstock.server.amqp.doors import MEMORY_LEAST
    from penstock.server.lifecycle import doors_of

    what, wanted, cores = "AMQP processes", settings.server.doors, Machine().cores()
    count = doors_of(wanted)
    why = f"server.doors = {wanted}, {counted(cores, 'core')}"
    if not count:
        return Finding(what, "good", f"none: the server's own takes the clients ({why})")
    bound = format_size(MEMORY_LEAST + settings.server.memory)
    found = f"{count}, each may allocate {bound} ({why})"
    if server is not None:
        found += f"; {(there := len(list(children(server, b'penstock.server.amqp.front'))))} of them run"
        if there < count:
            return Finding(what, "poor", found, _AGAIN)
    many = count >= cores > 1 or count > 1 == cores
    advice = f"the server's own process needs a core, too: more than {max(1, cores - 1)} are not worth it"
    return Finding(what, "poor" if many else "good", found, advice if many else "")


_AGAIN = "the server's log says why; one that ends begins again within seconds"


def http_process(settings: Settings, server: int | None = None) -> Finding:
    """Whether a process reads what HTTP's clients send, and whether that of the server that runs is there."""
    from penstock.server.base.loading import HTTP
    from penstock.server.http.doorway import MODULE

    what, why = "HTTP process", f"(server.doors = {settings.server.doors})"
    if settings.server.doors == 0:
        return Finding(what, "good", f"none: the server's own takes the clients {why}")
    return _running(what, f"it may allocate {format_size(HTTP[1])} {why}", MODULE, server)


def flight_process(settings: Settings, server: int | None = None) -> Finding:
    """The same of what speaks gRPC; there is always one."""
    from penstock.server.base.loading import STACKS, of_a_door

    decoded, whole = map(format_size, of_a_door(settings.server.memory))
    stacks = format_size(STACKS)
    found = f"it may allocate {whole}, {decoded} of it for what clients compress and {stacks} for stacks of threads"
    return _running("Flight process", found, "penstock.server.flight.front", server)


def _running(what: str, found: str, module: str, server: int | None) -> Finding:
    if server is None or any(children(server, module.encode())):
        return Finding(what, "good", found if server is None else f"{found}; it runs")
    return Finding(what, "poor", f"{found}; it does not run", _AGAIN)


def port(name: str, address: Address, server: int | None = None) -> Finding:
    """Whether an address can be listened on; well, too, when the server of the data folder does so already."""
    what = f"{name} door"
    if address.port == 0:
        return Finding(what, "good", f"{address}, any free port")
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            if server is not None and listens(server, address.port):
                return Finding(what, "good", f"{address}, where process {server} listens")
            advice = f"stop what listens there (Penstock, perhaps), or set listen.{name}"
            return Finding(what, "bad", f"{address}: {error.strerror or error}", advice)
    return Finding(what, "good", f"{address} is free")


def certificates(settings: Settings) -> Iterator[Finding]:
    """Of the doors, of the cluster and of each link: whether the files can be used, and how long."""
    from penstock.server.sockets.certificates import DOORS, LINK, of_settings

    for whose, files in of_settings(settings):
        what = "TLS certificate" if whose == DOORS else f"TLS certificate, {whose}"
        try:
            found = files.look()
        except SettingsError as error:
            yield Finding(what, "bad", files.certificate, str(error))
            continue
        now, hosts = datetime.now(UTC), ", ".join(found.names) or "no host"
        told = f"{files.certificate}: {found.subject}, for {hosts}, {found.days_left(now):g} days left"
        why = found.complaint(now)
        if why is None and not found.names and files.section != LINK:
            why = "names no host or address of the server (subjectAltName): clients that verify it refuse it"
        yield Finding(what, "poor" if why else "good", told, f"{files.certificate} {why}" if why else "")


def files() -> Finding:
    """Descriptors: one a connection, and some for the log.  A server raises its own limit to the hard one."""
    soft, kept = to_be(*resource.getrlimit(resource.RLIMIT_NOFILE))
    found, few = f"{soft}, and {kept} more for the log", soft < FEW_FILES
    advice = f"about {max(0, soft - OWN)} connections fit: raise the hard limit, with `ulimit -Hn` or LimitNOFILE"
    return Finding("open files", "poor" if few else "good", found, advice if few else "")


def memory(budget: int, machine: Machine | None = None) -> Finding:
    """The budget for bodies beside what the machine has left, and the bound of the cgroup."""
    machine = machine or Machine()
    left, (most, whose) = machine.memory_left(), machine.bound(budget) or (None, "")
    found = ("" if left is None else f"{format_size(left)} available, ") + f"budget {format_size(budget)}"
    if (taken := budget_within(most, budget)) < budget:
        found += f", of which {format_size(taken)} are taken: {whose} {format_size(most or 0)}"
        return Finding("memory", "poor", found, "raise that limit, or lower server.memory to what is taken")
    if left is not None and budget > left:
        return Finding("memory", "poor", found, "lower server.memory: bodies are read from the log when needed")
    return Finding("memory", "good", found)


def streams(settings: Settings, door: Door) -> Finding:
    """What the server that runs keeps for pipelines that are no more."""
    try:
        found = _asked(settings, door, "streams")
    except PenstockError as error:
        return Finding("streams", "poor", "not known", f"the server does not tell: {error}")
    left = orphans(found)
    if left:
        return Finding("streams", "poor", f"{len(found)}, {len(left)} of them without a pipeline", "; ".join(left))
    return Finding("streams", "good", f"{len(found)}, none of a pipeline that is gone")


def alarms(settings: Settings, door: Door) -> Finding:
    """What is wrong with the server that runs while it goes on."""
    try:
        told = _told(settings, door, "health").get("alarms", [])
    except PenstockError as error:
        return Finding("alarms", "poor", "not known", f"the server does not tell: {error}")
    if not told:
        return Finding("alarms", "good", "none is set")
    return Finding("alarms", "poor", ", ".join(told), "the server's log has a line for each, with its reason")


def taking_over(settings: Settings) -> Iterator[Finding]:
    """What of the file the member that follows here would leave out, once it leads."""
    from penstock.server.cluster.rehearsal import left_out

    what = "settings, once this member leads"
    try:
        found = left_out(OsDisk(settings.server.data), settings)
    except (PenstockError, OSError) as error:
        yield Finding(what, "poor", "not known", f"its copy of the log cannot be read now: {error}")
        return
    if not found:
        yield Finding(what, "good", "all can be applied to what the log has")
    yield from (Finding(what, "bad", told, "it would be left out, and what was there before holds") for told in found)


def internal_errors(settings: Settings, door: Door) -> Finding:
    """Whether the server that runs has made mistakes that ended who asked, or put work off."""
    name = "internal errors"
    try:
        told = _told(settings, door, "health").get("internal_errors")
    except PenstockError as error:
        return Finding(name, "poor", "not known", f"the server does not tell: {error}")
    if not told:
        return Finding(name, "good", "none since the server started")
    found = f"{told['count']} since {_moment(told['since'])}, the last {_moment(told['last'])}"
    return Finding(name, "poor", found, "each place is in the server's log with its traceback, where a line begins with"
                   " 'a fault ended what was asked for': a mistake of Penstock's, worth a report")  # fmt: skip


def _moment(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="seconds")


def _asked(settings: Settings, door: Door, action: str) -> Any:
    """What the server that runs answers, of the list that the action is called by."""
    return _told(settings, door, action)[action]


def _told(settings: Settings, door: Door, action: str) -> dict[str, Any]:
    """What the server that runs answers."""
    from penstock.client import connect

    user, password = login(settings)
    with connect(address_here(settings, door), user=user, password=password, timeout=ASK_S) as client:
        return client.action(action)


def running_links(settings: Settings, door: Door) -> Iterator[Finding]:
    """How the links are that the server that runs has."""
    try:
        found = _asked(settings, door, "links")
    except PenstockError as error:
        yield Finding("links", "poor", "not known", f"the server does not tell: {error}")
        return
    for one in found:
        if one["direction"] == "out":
            yield _running_link(one)


def _running_link(one: Mapping[str, Any]) -> Finding:
    told, advice = f"{one['state']} since {_moment(one['since'])}, owes {one['lag_seconds']:.1f} s", list[str]()
    if one["state"] == "paused":
        advice.append(f"the log is kept for it: penstock link resume {one['link']}")
    elif one["why"]:
        advice.append(one["why"])
    if one["downgraded"]:
        advice.append("it is downgraded: confirms do not wait for it")
    if one["awaited"]:
        advice.append("queues here wait for what it has to tell")
    return Finding(f"link {one['link']}, running", "poor" if advice else "good", told, "; ".join(advice))


def examine_links(settings: Settings) -> Iterator[Finding]:
    """Whether each [[link]] can be called, and its queues can be shared."""
    paced = any(step.downgrade_replication is not None for action in settings.action for step in action.do)
    for link in settings.link:
        what = f"link {link.name}"
        yield from _files_of(what, link)
        yield from (_called(what, str(one), one.host, one.port, tls=one.tls) for one in link.targets)
        if link.sync and link.downgrade_after is None and not paced:
            advice = "publishers wait for as long as that site is away: downgrade_after says for how long at most"
            yield Finding(what, "poor", "sync without downgrade_after", advice)
        for queue in filter(partial(_carried, link), settings.queue):
            yield from _shared(what, queue)
    for queue in settings.queue:
        yield from _first_owned(settings, queue)


def _files_of(what: str, link: LinkSection) -> Iterator[Finding]:
    from penstock.server.people.users import password_of

    try:
        password_of(link)
    except SettingsError as error:
        yield Finding(what, "bad", f"password_file = {link.password_file}", str(error))
    if link.ca is not None and link.certificate is None:  # that of others stands among certificates
        from penstock.server.sockets.certificates import LINK, read_file, trust

        try:
            trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), LINK, link.ca, read_file(LINK, "ca", link.ca))
        except SettingsError as error:
            yield Finding(what, "bad", f"ca = {link.ca}", str(error))


def _shared(what: str, queue: Queue) -> Iterator[Finding]:
    """Whether a queue that a link carries can be had at both sites."""
    from penstock.core.queue.owning import why_not_shared

    if (why := why_not_shared(queue.settings)) is not None:
        advice = "the link is refused where the other site has that queue, too"
        yield Finding(what, "poor", f"queue {queue.name!r} has {why}", advice)


def _first_owned(settings: Settings, queue: Queue) -> Iterator[Finding]:
    """Whether what is published to a queue here comes to the site that is its `initial_owner`."""
    from penstock.core.commands.offering import all_goes_on
    from penstock.core.links.carried import Carried
    from penstock.server.links.links import carried

    rules, owner = queue.settings, queue.settings.initial_owner
    if owner is None or owner == settings.site:
        return
    links = {link.name: Carried(carried(link)) for link in settings.link}
    what, found = f"queue {queue.name}", f"its initial_owner is {owner!r}"
    if not all_goes_on(links, owner, queue.vhost, rules.exchange, rules.underlying_topic or queue.name):
        left = "the link to it leaves out some of the queue" if owner in links else "no link carries all of the queue"
        advice = "that site would own nothing of the rest, nor would anybody, and such a link is refused"
        yield Finding(what, "bad", f"{found}, and {left}", advice)
    elif owner not in links:
        advice = "no link leads there: whether the sites between hand all of it on only they can say"
        yield Finding(what, "poor", found, advice)


def _carried(link: LinkSection, queue: Queue) -> bool:
    """Whether a link carries what a queue shows."""
    from penstock.core.links.carried import may_meet

    settings = queue.settings
    shown = TopicPattern(settings.underlying_topic or queue.name)
    return settings.kind != "local" and any(
        one.vhost == queue.vhost and one.exchange == settings.exchange and may_meet(TopicPattern(one.pattern), shown)
        for one in link.topic
    )


def _called(what: str, address: str, host: str, port: int, *, tls: bool) -> Finding:
    """Whether something listens where another site should be."""
    try:
        socket.create_connection((host, port), REACH_S).close()
    except OSError as error:
        return Finding(what, "poor", f"{address}: {error}", "it is down, or what lies between keeps us apart")
    if not tls and not host.startswith(LOOPBACK):
        return Finding(
            what, "poor", f"{address}, can be reached", "password and messages are sent in clear: penstocks://"
        )
    return Finding(what, "good", f"{address}, can be reached")


def java(*, needed: bool, here: bool = True) -> Finding:
    """Java 17 or later, which Spark needs, and how it may start with less work.  here: Spark runs on this machine."""
    from penstock.spark.sessions import find_java, java_version

    try:
        program = find_java()
    except SettingsError as error:
        found, _, advice = str(error).partition(": ")
        return Finding("Java", "bad" if needed else "poor", found, advice)
    slow = needed and here and not _has_class_archive(program)
    advice = "python -m penstock.spark.class_archive has pipelines start with less work; so does penstock up, in time"
    return Finding("Java", "good", f"{java_version(program)}, {program}", advice if slow else "")


def _has_class_archive(program: str) -> bool:
    """Also where there is no PySpark to make one of."""
    from penstock.spark.sessions import ClassArchive

    try:
        return ClassArchive.of(program).is_usable()
    except ImportError:
        return True
