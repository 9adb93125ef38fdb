"""What a member tells of its cluster as metrics, and the rules for alerts that name them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock.cli.serving import read_settings
from penstock.server.cluster.log_sending import BOUNDS
from penstock.server.http.exposition import exposition
from penstock.server.http.metrics import Metrics

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/cluster"
LEADS: dict[str, Any] = {
    "member": "m-1", "name": "a", "role": "leading", "trouble": "", "min_in_sync": 2, "cluster": "c-1", "term": 3,
    "in_sync": ["m-1", "m-2"], "members": {"m-1": {"name": "a"}, "m-2": {"name": "b"}, "m-3": {"name": "c"}},
    "ack_seconds": {"counts": [*range(3, 3 + len(BOUNDS)), 90], "sum": 1.5},
    "lsn": 1000 + (3 << 33), "committed_lsn": 900, "lease_left_seconds": 2.5, "enough": True, "sent_bytes": 5000,
    "cut_records": 12, "waited_for": ["m-2"],
    "followers": {
        "m-2": {
            "acked_lsn": 990 + (3 << 33), "lag_bytes": 400, "level": True, "silent_seconds": 0.1, "lag_seconds": 0.25,
        },
        "m-3": {"acked_lsn": 7, "lag_bytes": 9000, "level": False, "silent_seconds": 1.5, "lag_seconds": None},
    },
}  # fmt: skip
FOLLOWS: dict[str, Any] = {
    **{name: LEADS[name] for name in ("min_in_sync", "cluster", "term", "in_sync", "members")},
    "member": "m-3", "name": "c", "role": "following", "trouble": "no route", "lsn": 40, "leader_lsn": 60,
    "connected": True, "clock_ahead_seconds": -3600.25,
}  # fmt: skip
BY_HAND: dict[str, Any] = {**FOLLOWS, "manual": True, "rival": None, "claims": [["a", 65]]}


def samples(known: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """By name and values of labels."""
    text = b"".join(exposition(Metrics(), membership=known)).decode()
    found = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {(one.name, *one.labels.values()): one.value for one in found if one.name.startswith("penstock_cluster_")}


def test_a_leader_tells_of_its_followers() -> None:
    found = samples(LEADS)
    assert found["penstock_cluster_role", "leading"] == 1
    assert found["penstock_cluster_role", "following"] == 0
    assert found["penstock_cluster_term",] == 3
    assert (found["penstock_cluster_in_sync",], found["penstock_cluster_members",]) == (2, 3)
    assert found["penstock_cluster_waited_for",] == 1
    assert found["penstock_cluster_lag_bytes", "c"] == 9000
    assert found["penstock_cluster_ack_age_seconds", "b"] == 0.1
    assert found["penstock_cluster_lag_records", "b"] == 10
    assert found["penstock_cluster_lag_seconds", "b"] == 0.25
    assert ("penstock_cluster_lag_seconds", "c") not in found, "it has never been level"
    assert found["penstock_cluster_sent_bytes_total",] == 5000
    assert found["penstock_cluster_cut_records_total",] == 12
    assert found["penstock_cluster_takeovers_total",] == 3
    assert ("penstock_cluster_lag_records", "c") not in found, "LSNs of another term count no records"
    assert found["penstock_cluster_counts",] == 1
    assert found["penstock_cluster_ack_seconds_bucket", "0.0005"] == 3
    assert found["penstock_cluster_ack_seconds_count",] == found["penstock_cluster_ack_seconds_bucket", "+Inf"] == 90
    assert found["penstock_cluster_ack_seconds_sum",] == 1.5


def test_a_follower_tells_of_itself() -> None:
    found = samples(FOLLOWS)
    assert found["penstock_cluster_role", "following"] == 1
    assert found["penstock_cluster_lag_records", "c"] == 20
    assert found["penstock_cluster_connected",] == 1
    assert found["penstock_cluster_trouble",] == 1
    assert found["penstock_cluster_clock_ahead_seconds",] == -3600.25
    assert found["penstock_cluster_counts",] == 0


def test_with_terms_made_by_hand_each_member_that_leads_is_told() -> None:
    found = samples(BY_HAND)
    assert (found["penstock_cluster_two_leaders",], found["penstock_cluster_claimed_term", "a"]) == (0, 65)
    found = samples({**BY_HAND, "rival": 66, "claims": [["a", 65], ["b", 66]]})
    assert found["penstock_cluster_two_leaders",] == 1
    assert (found["penstock_cluster_claimed_term", "a"], found["penstock_cluster_claimed_term", "b"]) == (65, 66)
    assert ("penstock_cluster_two_leaders",) not in samples(FOLLOWS), "a register has one value"


def test_without_a_cluster_there_are_none() -> None:
    assert samples({}) == {}


def test_alerts_name_metrics_that_are_there() -> None:
    told = {name for name, *_ in (samples(LEADS) | samples(FOLLOWS) | samples(BY_HAND))}
    [group] = yaml.safe_load((EXAMPLE / "alerts.yml").read_text())["groups"]
    named = {name for rule in group["rules"] for name in re.findall(r"penstock_\w+", rule["expr"])}
    assert len(group["rules"]) >= 6
    assert named
    assert named <= told


def test_the_servers_of_the_compose_file_have_settings_that_are_right(monkeypatch: Any) -> None:
    services = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
    servers = {name: one for name, one in services.items() if name.startswith("penstock-")}
    assert len(servers) == 3
    for name, one in servers.items():
        for key, value in one["environment"].items():
            monkeypatch.setenv(key, value)
        settings = read_settings(str(EXAMPLE / "penstock.toml"), {})
        assert settings.server.name == name
        assert settings.cluster is not None
        assert settings.cluster.advertise == f"{name}:8817"


def test_kubernetes_has_the_ports_names_and_probes_of_the_servers(monkeypatch: Any) -> None:
    parts = list(yaml.safe_load_all((EXAMPLE / "kubernetes.yaml").read_text()))
    services = {one["metadata"]["name"]: one["spec"] for one in parts if one["kind"] == "Service"}
    [servers] = [one["spec"] for one in parts if one["kind"] == "StatefulSet"]
    pod = servers["template"]["spec"]
    [server], [init] = pod["containers"], pod["initContainers"]
    given = {one["name"]: one.get("value", "penstock-1") for one in server["env"]}
    for name, value in given.items():
        monkeypatch.setenv(name, value.replace("$(PENSTOCK_SERVER__NAME)", "penstock-1"))
    settings = read_settings(str(EXAMPLE / "penstock.toml"), {})
    assert settings.cluster is not None
    assert settings.cluster.listen is not None
    assert settings.listen.amqp and settings.listen.http and settings.listen.flight  # noqa: PT018 - all of them
    listens = {
        "amqp": settings.listen.amqp.port, "http": settings.listen.http.port, "flight": settings.listen.flight.port,
        "members": settings.cluster.listen.port,
    }  # fmt: skip
    assert {one["name"]: one["containerPort"] for one in server["ports"]} == listens
    for spec in services.values():
        assert all(listens[one["name"]] == one["port"] for one in spec["ports"])
        assert spec["selector"] == servers["template"]["metadata"]["labels"]
    assert settings.cluster.advertise == f"penstock-1.{servers['serviceName']}:{listens['members']}"
    members = services[servers["serviceName"]]
    assert (members["clusterIP"], members["publishNotReadyAddresses"]) == ("None", True), "followers are never ready"
    assert (servers["podManagementPolicy"], servers["updateStrategy"]["type"]) == ("Parallel", "OnDelete")
    probe = server["readinessProbe"]["httpGet"]
    assert (probe["path"], probe["port"]) == ("/readyz", "http")
    assert init["env"] == server["env"]
    mounts = {one["name"]: one["mountPath"] for one in server["volumeMounts"]}
    assert str(settings.server.data).startswith(mounts["data"])
    assert f"{mounts['settings']}/penstock.toml" in server["args"]
    assert mounts.keys() == {one["name"] for one in pod["volumes"]} | {
        one["metadata"]["name"] for one in servers["volumeClaimTemplates"]
    }
