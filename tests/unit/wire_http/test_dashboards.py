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
