"""Each rule for alerts that is shipped, played: what a scraper has seen for so long, and whom it is told of then.

Values are one a minute, as promtool has it: `1x9` is ten times the same, `0+1x9` counts up, `_` is nothing, `stale`
what Prometheus keeps of who does not answer any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
FILES = ("alerts.yml", "cluster/alerts.yml", "sites/alerts.yml")

Seen = Mapping[str, str]


class Case(NamedTuple):
    """One play of one rule."""

    rule: str
    at: str  # when it is asked
    seen: Seen  # series and values
    of: Sequence[Mapping[str, str]] = ()  # labels of each that fires, beside its severity; none: it is quiet


def _of(instance: str, job: str = "p") -> str:
    return f'instance="{instance}",job="{job}"'


def _leads(name: str = "a", values: str = "1x20", role: str = "leading") -> Seen:
    return {f'penstock_cluster_role{{{_of(name)},role="{role}"}}': values}


def _cluster(name: str, **figures: str) -> Seen:
    return {f"penstock_cluster_{key}{{{_of(name)}}}": values for key, values in figures.items()}


def _link(**figures: str) -> Seen:
    return {f'penstock_link_{key}{{{_of("a")},direction="out",link="b"}}': values for key, values in figures.items()}


def _server(series: str, values: str) -> Seen:
    name, _, labels = series.partition("{")
    more = labels.rstrip("}")
    return {f"{name}{{{_of('a')}{',' + more if more else ''}}}": values}


A, JOB = {"instance": "a", "job": "p"}, {"job": "p"}
LINK = {**A, "direction": "out", "link": "b"}
UP = {"up": "1x90", "paused": "0x90", "refused": "0x90", "downgraded": "0x90", "lag_seconds": "0x90"}

CASES: Sequence[Case] = (
    # a single server
    Case("PenstockIsDown", "5m", {**_server("up", "1 0x9"), **_server("penstock_broken", "0 stale _x9")}, [A]),
    Case("PenstockIsDown", "5m", {**_server("up", "1x9"), **_server("penstock_broken", "0x9")}),
    Case("PenstockIsDown", "5m", {**_server("up", "0x9")}),  # another's
    Case("PenstockIsBroken", "2m", _server("penstock_broken", "0 1x9"), [A]),
    Case("PenstockIsBroken", "2m", _server("penstock_broken", "0x9")),
    Case("PenstockDiskIsFull", "2m", _server("rabbitmq_alarms_free_disk_space_watermark", "0 1x9"), [A]),
    Case("PenstockDiskIsFull", "2m", _server("rabbitmq_alarms_free_disk_space_watermark", "0x9")),
    Case(
        "PenstockDiskIsNearlyFull", "7m", _server('penstock_alarms{alarm="disk_low"}', "_ 1x20"),
        [{**A, "alarm": "disk_low"}],
    ),
    Case("PenstockDiskIsNearlyFull", "4m", _server('penstock_alarms{alarm="disk_low"}', "_ 1x20")),
    Case("PenstockDiskIsNearlyFull", "7m", _server('penstock_alarms{alarm="members"}', "1x20")),
    Case("PenstockMemoryIsShort", "3m", _server("rabbitmq_alarms_memory_used_watermark", "0 1x9"), [A]),
    Case("PenstockMemoryIsShort", "1m", _server("rabbitmq_alarms_memory_used_watermark", "0 1x9")),
    Case(
        "PenstockArchiveIsBehind", "12m", _server('penstock_alarms{alarm="archive"}', "_ 1x20"),
        [{**A, "alarm": "archive"}],
    ),
    Case("PenstockArchiveIsBehind", "12m", _server('penstock_alarms{alarm="members"}', "1x20")),
    Case("PenstockInternalErrors", "5m", _server("penstock_internal_errors_total", "0 0 1x9"), [A]),
    Case("PenstockInternalErrors", "5m", _server("penstock_internal_errors_total", "_ _ 1x9"), [A]),  # its first word
    Case("PenstockInternalErrors", "40m", _server("penstock_internal_errors_total", "0 0 1x50")),
    Case("PenstockCertificateEnds", "1m", _server("penstock_tls_certificate_seconds_left", "1000x9"), [A]),
    Case("PenstockCertificateEnds", "1m", _server("penstock_tls_certificate_seconds_left", "9999999x9")),
    Case(
        "PenstockQueueIsLate", "7m", _server('penstock_queue_seconds_behind{queue="q"}', "3700x9"),
        [{**A, "queue": "q"}],
    ),
    Case("PenstockQueueIsLate", "7m", _server('penstock_queue_seconds_behind{queue="q"}', "3500x9")),
    # a cluster of servers
    Case("PenstockClusterHasNoLeader", "3m", {**_leads("a", "1 0x9"), **_leads("b", "0x9")}, [JOB]),
    Case("PenstockClusterHasNoLeader", "3m", {**_leads("a", "1 stale _x9"), **_leads("b", "0x9")}, [JOB]),
    Case("PenstockClusterHasNoLeader", "3m", {**_leads("a", "1 stale _x9"), **_leads("b", "0 stale _x9")}, [JOB]),
    Case("PenstockClusterHasNoLeader", "3m", {**_leads("a", "1 stale _x9"), **_leads("b", "0 1x9")}),
    Case("PenstockClusterHasTwoLeaders", "3m", {**_leads("a", "1x9"), **_leads("b", "0 1x9")}, [JOB]),
    Case("PenstockClusterHasTwoLeaders", "3m", {**_leads("a", "1 stale _x9"), **_leads("b", "0 1x9")}),
    Case("PenstockClusterLeadersDisagree", "2m", _cluster("a", two_leaders="0 1x9"), [JOB]),
    Case("PenstockClusterLeadersDisagree", "2m", _cluster("a", two_leaders="0x9")),
    Case(
        "PenstockClusterConfirmsNothing", "3m",
        {**_leads(), **_cluster("a", in_sync="2 1x9", min_in_sync="2x9", waited_for="0x9")}, [A],
    ),
    Case(
        "PenstockClusterConfirmsNothing", "3m",
        {**_leads(), **_cluster("a", in_sync="2x9", min_in_sync="1x9", waited_for="0 1x9")}, [A],
    ),
    Case(
        "PenstockClusterConfirmsNothing", "3m",
        {**_leads(), **_cluster("a", in_sync="2x9", min_in_sync="2x9", waited_for="0x9")},
    ),
    Case(
        "PenstockClusterConfirmsNothing", "3m",
        {**_leads(values="0x9"), **_cluster("a", in_sync="1x9", min_in_sync="2x9")},
    ),
    Case("PenstockClusterHasNoSpare", "7m", {**_leads(), **_cluster("a", in_sync="3 2x9", min_in_sync="2x9")}, [A]),
    Case("PenstockClusterHasNoSpare", "7m", {**_leads(), **_cluster("a", in_sync="3x9", min_in_sync="2x9")}),
    Case(
        "PenstockClusterMemberFallsBehind", "9m",
        _server('penstock_cluster_lag_bytes{member="b"}', "0+9000000x20"), [{**A, "member": "b"}],
    ),
    Case("PenstockClusterMemberFallsBehind", "9m", _server('penstock_cluster_lag_bytes{member="b"}', "99999999x20")),
    Case(  # the one that is out is dead, and tells nothing of itself
        "PenstockClusterMemberIsOut", "7m",
        {
            **_leads(), **_leads("b", "1 stale _x9", "following"), **_cluster("a", in_sync="3 2x9", members="3x9"),
            **_cluster("b", in_sync="3 stale _x9", members="3 stale _x9", counts="1 stale _x9"),
        },
        [A],
    ),
    Case("PenstockClusterMemberIsOut", "7m", {**_leads(), **_cluster("a", in_sync="3x9", members="3x9")}),
    Case("PenstockClusterMemberIsOut", "4m", {**_leads(), **_cluster("a", in_sync="3 2x9", members="3x9")}),
    Case("PenstockClusterClocksAreApart", "3m", _cluster("a", clock_ahead_seconds="0 -3600x9"), [A]),
    Case("PenstockClusterClocksAreApart", "3m", _cluster("a", clock_ahead_seconds="0.2x9")),
    Case("PenstockClusterRegisterIsSilent", "3m", _cluster("a", trouble="0 1x9"), [A]),
    Case("PenstockClusterRegisterIsSilent", "3m", _cluster("a", trouble="0x9")),
    Case("PenstockClusterChangesLeaders", "9m", _cluster("a", term="1 2 3 4 5x9"), [A]),
    Case("PenstockClusterChangesLeaders", "9m", _cluster("a", term="1 2 3x9")),
    # sites
    Case("PenstockLinkIsDown", "5m", _link(**{**UP, "up": "0x9", "state_seconds": "0+60x9"}), [LINK]),
    Case("PenstockLinkIsDown", "5m", _link(**UP, state_seconds="0+60x9")),
    Case("PenstockLinkIsDown", "5m", _link(**{**UP, "up": "0x9", "paused": "1x9", "state_seconds": "0+60x9"})),
    Case("PenstockLinkIsRefused", "3m", _link(**{**UP, "refused": "0 1x9"}), [LINK]),
    Case("PenstockLinkIsRefused", "3m", _link(**UP)),
    Case("PenstockLinkIsPaused", "70m", _link(**{**UP, "paused": "1x90", "state_seconds": "0+60x90"}), [LINK]),
    Case("PenstockLinkIsPaused", "50m", _link(**{**UP, "paused": "1x90", "state_seconds": "0+60x90"})),
    Case("PenstockLinkFallsBehind", "3m", _link(**{**UP, "lag_seconds": "0 40x9"}), [LINK]),
    Case("PenstockLinkFallsBehind", "3m", _link(**UP)),
    Case("PenstockLinkIsDowngraded", "3m", _link(**{**UP, "downgraded": "0 1x9"}), [LINK]),
    Case("PenstockLinkIsDowngraded", "3m", _link(**UP)),
    Case("PenstockSiteActsForAnother", "70m", _server("penstock_queue_proxied", "1x90"), [A]),
    Case("PenstockSiteActsForAnother", "50m", _server("penstock_queue_proxied", "1x90")),
    Case("PenstockMessagesAreDoubled", "9m", _server("penstock_queue_double_total", "0 0 1x9"), [A]),
    Case("PenstockMessagesAreDoubled", "9m", _server("penstock_queue_double_total", "0x9")),
)  # fmt: skip


def rules(file: str) -> Mapping[str, Any]:
    """Those of a file, by name."""
    [group] = yaml.safe_load((EXAMPLES / file).read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def play(file: str, folder: Path) -> Path:
    """What `promtool test rules` reads: the rules of a file, without what they say, and their cases."""
    there = rules(file)
    bare = [{key: value for key, value in rule.items() if key != "annotations"} for rule in there.values()]
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "played", "rules": bare}]}))
    tests = list[object]()
    for case in CASES:
        if case.rule in there:
            labels = there[case.rule]["labels"]
            wanted = [{"exp_labels": {**one, **labels}} for one in case.of]
            tests.append(
                {
                    "interval": "1m",
                    "input_series": [{"series": one, "values": values} for one, values in case.seen.items()],
                    "alert_rule_test": [{"eval_time": case.at, "alertname": case.rule, "exp_alerts": wanted}],
                }
            )
    made = folder / "play.yml"
    made.write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}))
    return made
