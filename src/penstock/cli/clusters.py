"""`cluster init|status`: servers that keep one log together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.output import Json, family, tell, write_json, write_table
from penstock.cli.serving import ConfigFile, read_settings
from penstock.errors import SettingsError, Unavailable

if TYPE_CHECKING:
    from penstock.config.cluster_section import ClusterSection
    from penstock.replication.register import ClusterState

app = family("cluster", "Servers that keep one log: who leads, who follows.")


def _section(config: str | None) -> ClusterSection:
    settings = read_settings(config, {})
    if settings.cluster is None:
        raise SettingsError("the settings have no [cluster]")
    return settings.cluster


@app.command("init")
def init(config: ConfigFile = None, json: Json = False) -> None:
    """Make a cluster of the server with these settings, whose data folder may hold a log already.

    It must not run.  The others join with empty data folders, as they are started.

    Example: penstock cluster init penstock.toml
    """
    from penstock.server.cluster.founding import found

    state = found(read_settings(config, {}))
    [member] = state.members
    tell({"cluster": state.cluster, "origin": state.origin, "member": member}, f"cluster {state.cluster}", json)


@app.command("status")
def status(config: ConfigFile = None, json: Json = False) -> None:
    """Show what the register says: who leads, who is in sync.  Reads the register and asks no server.

    Example: penstock cluster status penstock.toml
    """
    from penstock.replication.register import decode
    from penstock.server.cluster.registers import register_at

    section = _section(config)
    kept = register_at(section.registry).read()
    if not kept.value:
        raise Unavailable(f"the register {section.registry} is empty: `penstock cluster init` makes a cluster")
    state = decode(kept.value)
    if json:
        write_json(told(state))
        return
    rows = [
        (one.name, key, "leader" if key == state.leader else "", "yes" if key in state.in_sync else "no", one.address)
        for key, one in sorted(state.members.items())
    ]
    write_table(("name", "member", "role", "in sync", "address"), rows, title=f"{state.cluster}, term {state.term}")


def told(state: ClusterState) -> dict[str, Any]:
    """For programs."""
    return {
        "cluster": state.cluster, "origin": state.origin, "format": state.format, "term": state.term,
        "leader": state.leader, "in_sync": sorted(state.in_sync), "to": state.to, "beat": state.beat,
        "members": {key: {"name": one.name, "address": one.address} for key, one in sorted(state.members.items())},
        "terms": [one._asdict() for one in state.terms],
    }  # fmt: skip
