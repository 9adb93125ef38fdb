"""What a driver of pipelines is given: which pipelines go together, and the job that says so.

Pipelines with one master, one size of heap and the same settings of Spark's core share a process; another one of these
needs a process of its own.  A pipeline that is in no job any more may leave streams that hold something (`orphans`).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.cli.output import counted
from penstock.cli.reaching import Door, address_for, is_loopback
from penstock.errors import SettingsError
from penstock.units import format_size

SHARED = "driver"
"""The name of the driver of pipelines that ask for nothing of their own."""

SILENT_S = 3600.0
"""After so long without a word a run by hand was killed."""

_OF_A_RUN = re.compile(r"(?:driver|status|scratch)-run-(\d+)(?:\.(?:json|log|part))?")

QUIET_LOG = {"spark.log.level": "INFO"}
"""What `--spark-log` asks of Spark."""


def groups(settings: Any) -> dict[str, list[Any]]:
    """Pipelines, and views that Spark computes, by the name of the driver that runs them."""
    found: dict[str, list[Any]] = {}
    for one in settings.pipeline:
        found.setdefault(driver_of(one, settings), []).append(one)
    if views := [one for one in settings.view if one.engine == "spark"]:
        found.setdefault(SHARED, []).extend(views)
    return found


def driver_of(pipeline: Any, settings: Any) -> str:
    """The name of its driver: `driver`, or one that its own resources make."""
    own = resources(pipeline, settings)
    if own == resources(None, settings):
        return SHARED
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:8]


def resources(pipeline: Any, settings: Any) -> dict[str, Any]:
    """What belongs to a process: master, heap, and settings of Spark that are none of SQL."""
    spark = settings.spark
    conf = dict(spark.conf)
    if pipeline is not None:
        conf |= {name: value for name, value in pipeline.conf.items() if not name.startswith("spark.sql.")}
    memory = (pipeline.memory if pipeline is not None else None) or spark.memory
    return {
        "master": (pipeline.master if pipeline is not None else None) or spark.master,
        "memory": f"{max(256, memory >> 20)}m",
        "conf": conf,
    }


def folder_of(settings: Any) -> Path:
    """Where checkpoints and everything about pipelines lie."""
    if settings.spark.checkpoints:
        return Path(settings.spark.checkpoints).absolute()
    return Path(settings.server.data).absolute() / "spark"


def job(
    settings: Any, pipelines: Sequence[Any], name: str, url: str, *, path: Sequence[str] = (), spark_log: bool = False
) -> dict[str, Any]:
    """The job of a driver; `path`: folders where the users' own modules are."""
    user, password = login(settings)
    own = resources(_own(pipelines), settings)
    return {
        "name": name,
        "url": url,
        "user": user,
        "password": password,
        "folder": str(folder_of(settings)),
        **own,
        "conf": {**own["conf"], **(QUIET_LOG if spark_log else {})},
        "path": list(path),
        "openlineage": settings.spark.openlineage,
        "pipelines": [one.model_dump(mode="json", by_alias=True) for one in pipelines],
    }


def sweep(folder: Path, now: float) -> list[Path]:
    """Remove what runs that were killed have left: logs, statuses, and Spark's scratch files.

    now: seconds since the epoch.  A run tells how it is every second, so one that was silent for long is none any
    more, on whichever machine it was.
    """
    left: dict[str, list[Path]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _OF_A_RUN.fullmatch(path.name):
            left.setdefault(match[1], []).append(path)
    removed: list[Path] = []
    for number, paths in left.items():
        heard = max((path.lstat().st_mtime for path in paths if path.is_file()), default=0.0)
        if now - heard < SILENT_S or Path(f"/proc/{number}").exists():
            continue
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            removed.append(path)
    return sorted(removed)


def url_for(settings: Any, pipelines: Sequence[Any], door: Door) -> str:
    """Where the driver and the executors of these pipelines find the server that has this door.

    SettingsError where executors would not find it, or their user would not be let in from other machines.
    """
    master = resources(_own(pipelines), settings)["master"]
    url = address_for(settings, master, door)
    user = settings.users[0]
    if user.loopback_only and not master.startswith("local") and not is_loopback(str(urlsplit(url).hostname)):
        raise SettingsError(
            f"pipelines log in as the first user, {user.name}, who is refused from other machines, and executors of "
            f"{master} come from there: make a [[user]] of your own the first"
        )
    return url


def _own(pipelines: Sequence[Any]) -> Any:
    """The pipeline that says what its driver is like: all of one driver say the same, and views say nothing."""
    return next((one for one in pipelines if hasattr(one, "master")), None)


def login(settings: Any) -> tuple[str, str]:
    """The first user of the settings: pipelines act as they."""
    user = settings.users[0]
    if user.password is not None:
        return str(user.name), str(user.password.get_secret_value())
    if user.password_file is None:
        raise SettingsError(
            f"pipelines log in as the first user, {user.name}, who has only a hash: give a password or password_file"
        )
    try:
        return str(user.name), Path(user.password_file).read_text().splitlines()[0]
    except (OSError, IndexError) as error:
        raise SettingsError(f"password_file of user {user.name} cannot be read: {error}") from error


def holds(stream: Mapping[str, Any]) -> str:
    """What a stream keeps: messages of its queue, bytes of the log."""
    log = f"{format_size(stream['held_bytes'])} of the log" if stream["held_bytes"] else None
    messages = counted(stream["held"], "message") if stream["held"] else None
    return ", ".join(filter(None, (messages, log))) or "nothing"


def orphan(stream: Mapping[str, Any]) -> str:
    """A sentence about one whose pipeline is in no settings and in no driver."""
    return (
        f"stream {stream['stream']} holds {holds(stream)} for pipeline {stream['pipeline']}, which the settings do not "
        f"have: penstock stream release {stream['stream']} --drop"
    )


def orphans(streams: Iterable[Mapping[str, Any]]) -> list[str]:
    """The same for all of them that hold something."""
    return [orphan(one) for one in streams if one["orphaned"] and one["state"] == "held"]
