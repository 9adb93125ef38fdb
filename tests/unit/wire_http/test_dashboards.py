"""The series that RabbitMQ's published Grafana dashboards ask for, and `/metrics/detailed`."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from http_lab import NO_TLS, Http

OVERVIEW = """
rabbitmq_build_info rabbitmq_channels rabbitmq_channels_closed_total rabbitmq_channels_opened_total rabbitmq_connections
rabbitmq_connections_closed_total rabbitmq_connections_opened_total rabbitmq_disk_space_available_bytes
rabbitmq_disk_space_available_limit_bytes rabbitmq_erlang_uptime_seconds rabbitmq_global_consumers
rabbitmq_global_messages_acknowledged_total rabbitmq_global_messages_confirmed_total
rabbitmq_global_messages_delivered_consume_auto_ack_total rabbitmq_global_messages_delivered_consume_manual_ack_total
rabbitmq_global_messages_delivered_get_auto_ack_total rabbitmq_global_messages_delivered_get_manual_ack_total
rabbitmq_global_messages_delivered_total rabbitmq_global_messages_get_empty_total
rabbitmq_global_messages_received_confirm_total rabbitmq_global_messages_received_total
rabbitmq_global_messages_redelivered_total rabbitmq_global_messages_routed_total
rabbitmq_global_messages_unroutable_dropped_total rabbitmq_global_messages_unroutable_returned_total
rabbitmq_global_publishers rabbitmq_identity_info rabbitmq_message_size_bytes_bucket rabbitmq_message_size_bytes_count
rabbitmq_message_size_bytes_sum rabbitmq_process_max_fds rabbitmq_process_open_fds
rabbitmq_process_resident_memory_bytes
rabbitmq_queue_messages_ready rabbitmq_queue_messages_unacked rabbitmq_queues rabbitmq_queues_created_total
rabbitmq_queues_declared_total rabbitmq_queues_deleted_total rabbitmq_resident_memory_limit_bytes
"""
"""What the queries of RabbitMQ-Overview name, as it is published with RabbitMQ 4.2."""

OLDER = """
rabbitmq_build_info rabbitmq_channel_consumers rabbitmq_channel_get_ack_total rabbitmq_channel_get_empty_total
rabbitmq_channel_get_total rabbitmq_channel_messages_acked_total rabbitmq_channel_messages_confirmed_total
rabbitmq_channel_messages_delivered_ack_total rabbitmq_channel_messages_delivered_total
rabbitmq_channel_messages_published_total rabbitmq_channel_messages_redelivered_total
rabbitmq_channel_messages_unconfirmed rabbitmq_channel_messages_unroutable_dropped_total
rabbitmq_channel_messages_unroutable_returned_total rabbitmq_channels rabbitmq_channels_closed_total
rabbitmq_channels_opened_total rabbitmq_connections rabbitmq_connections_closed_total
rabbitmq_connections_opened_total rabbitmq_disk_space_available_bytes rabbitmq_identity_info
rabbitmq_process_max_fds rabbitmq_process_max_tcp_sockets rabbitmq_process_open_fds
rabbitmq_process_open_tcp_sockets rabbitmq_process_resident_memory_bytes rabbitmq_queue_messages_published_total
rabbitmq_queue_messages_ready rabbitmq_queue_messages_unacked rabbitmq_queues rabbitmq_queues_created_total
rabbitmq_queues_declared_total rabbitmq_queues_deleted_total rabbitmq_resident_memory_limit_bytes
"""
"""The same of RabbitMQ-Overview as it was before RabbitMQ 3.9."""

RAFT = """
rabbitmq_identity_info rabbitmq_raft_entry_commit_latency_seconds rabbitmq_raft_log_commit_index
rabbitmq_raft_log_last_written_index rabbitmq_raft_log_snapshot_index rabbitmq_raft_term_total
"""
"""Of RabbitMQ-Quorum-Queues-Raft."""

ONE_LOG: Mapping[str, str] = {
    "rabbitmq_raft_entry_commit_latency_seconds": "penstock_loop_pause_seconds and penstock_cluster_ack_seconds say it",
    "rabbitmq_raft_log_snapshot_index": "a checkpoint cuts nothing off the log",
    "rabbitmq_raft_term_total": "penstock_cluster_term says it, where there is a cluster",
}

NOT_OURS: Mapping[str, str] = {
    f"rabbitmq_message_size_bytes_{part}": "no size of a single message is counted: a publish of many is one step"
    for part in ("bucket", "count", "sum")
}

JOINED = {"rabbitmq_node", "rabbitmq_cluster", "rabbitmq_endpoint"}
"""Labels of rabbitmq_identity_info by which the queries choose."""


def series(http: Http, path: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    text = httpx.get(f"{http.broker.http_url}{path}", verify=NO_TLS, auth=("guest", "guest"), timeout=20).text
    out: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            out.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return out


def test_the_queries_of_the_overview_find_their_series(http: Http) -> None:
    found = series(http, "/metrics")
    assert set(OVERVIEW.split()) - set(found) == set(NOT_OURS)
    [(who, _)] = found["rabbitmq_identity_info"]
    assert set(who) == JOINED
    assert who["rabbitmq_endpoint"] == "aggregated"
    [(what, _)] = found["rabbitmq_build_info"]
    assert {"rabbitmq_version", "erlang_version", "product_version"} <= set(what)
    assert found["rabbitmq_process_open_fds"][0][1] > 3
    assert found["rabbitmq_erlang_uptime_seconds"][0][1] >= 0


def test_the_queries_of_older_dashboards_find_theirs_and_the_figures_agree(http: Http) -> None:
    http.do("PUT", "queues/%2F/jobs", {"durable": True}, 201)
    before = series(http, "/metrics")
    for _ in range(3):
        assert http.publish("jobs", "x")
    assert len(http.take("jobs", 2)) == 2
    found = series(http, "/metrics/per-object")
    assert set(OLDER.split()) <= set(found)
    assert set(RAFT.split()) - set(found) == set(ONE_LOG)

    def grew(name: str) -> float:
        return sum(value for _, value in found[name]) - sum(value for _, value in before[name])

    assert grew("rabbitmq_channel_messages_published_total") == grew("rabbitmq_global_messages_received_total") == 3
    assert grew("rabbitmq_queue_messages_published_total") == 3
    assert found["rabbitmq_raft_log_commit_index"][0][1] > before["rabbitmq_raft_log_commit_index"][0][1]
    names = {name for name in found if name.startswith("rabbitmq_channel_")}
    assert all(not labels for name in names for labels, _ in found[name]), "a query by instance finds one line"


def test_detailed_metrics_have_the_families_and_vhosts_that_are_named(http: Http) -> None:
    http.do("PUT", "vhosts/far", {}, 201)
    for vhost in ("%2F", "far"):
        http.do("PUT", f"queues/{vhost}/jobs", {"durable": True}, 201)
    asked = "/metrics/detailed?family=queue_coarse_metrics&family=vhost_status&family=nothing"
    found = series(http, asked)
    assert {name for name in found if "info" not in name} == {
        "rabbitmq_detailed_queue_messages", "rabbitmq_detailed_queue_messages_ready",
        "rabbitmq_detailed_queue_messages_unacked", "rabbitmq_cluster_vhost_status",
    }  # fmt: skip
    named = {one["vhost"] for one, _ in found["rabbitmq_detailed_queue_messages"]}
    assert named == {"/", "far"}
    found = series(http, f"{asked}&vhost=far&family=queue_consumer_count&family=queue_metrics")
    assert [one["vhost"] for one, _ in found["rabbitmq_detailed_queue_messages"]] == ["far"]
    assert len(found["rabbitmq_detailed_queue_consumers"]) == 1, "of two families, once"
    assert [one["vhost"] for one, _ in found["rabbitmq_cluster_vhost_status"]] == ["far"]
    assert found["rabbitmq_identity_info"][0][0]["rabbitmq_endpoint"] == "detailed"
    found = series(http, "/metrics/detailed?family=connection_churn_metrics&family=node_coarse_metrics")
    assert found["rabbitmq_detailed_queues_created_total"][0][1] == len(http.get("queues"))
    assert "rabbitmq_detailed_process_open_fds" in found
    assert set(series(http, "/metrics/detailed")) == {"rabbitmq_identity_info"}


@pytest.mark.parametrize("path", ["/metrics/detailed?family=queue_metrics", "/metrics/per-object"])
def test_who_asks_for_names_logs_in(http: Http, path: str) -> None:
    assert httpx.get(f"{http.broker.http_url}{path}", verify=NO_TLS).status_code == 401
