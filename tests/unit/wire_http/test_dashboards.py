"""The series that RabbitMQ's published Grafana dashboards ask for, and `/metrics/detailed`."""

from __future__ import annotations

from pathlib import Path

import httpx
import pika
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
rabbitmq_identity_info rabbitmq_raft_commit_index rabbitmq_raft_commit_latency_seconds rabbitmq_raft_last_written_index
rabbitmq_raft_log_commit_index rabbitmq_raft_log_last_written_index rabbitmq_raft_log_snapshot_index
rabbitmq_raft_snapshot_index rabbitmq_raft_term
"""
"""Of RabbitMQ-Quorum-Queues-Raft, as it is published with RabbitMQ 4.3: by the names of 4.2 and those before."""

OLDER_RAFT = """
rabbitmq_identity_info rabbitmq_raft_entry_commit_latency_seconds rabbitmq_raft_log_commit_index
rabbitmq_raft_log_last_written_index rabbitmq_raft_log_snapshot_index rabbitmq_raft_term_total
"""
"""The same as it was before RabbitMQ 4.2."""

STREAM = """
rabbitmq_global_consumers rabbitmq_global_messages_confirmed_total rabbitmq_global_messages_delivered_total
rabbitmq_global_messages_received_total rabbitmq_global_publishers rabbitmq_identity_info
rabbitmq_global_stream_error_access_refused_total rabbitmq_global_stream_error_authentication_failure_total
rabbitmq_global_stream_error_frame_too_large_total rabbitmq_global_stream_error_internal_error_total
rabbitmq_global_stream_error_precondition_failed_total rabbitmq_global_stream_error_publisher_does_not_exist_total
rabbitmq_global_stream_error_sasl_authentication_failure_loopback_total
rabbitmq_global_stream_error_sasl_challenge_total rabbitmq_global_stream_error_sasl_error_total
rabbitmq_global_stream_error_sasl_mechanism_not_supported_total
rabbitmq_global_stream_error_stream_already_exists_total rabbitmq_global_stream_error_stream_does_not_exist_total
rabbitmq_global_stream_error_stream_not_available_total
rabbitmq_global_stream_error_subscription_id_already_exists_total
rabbitmq_global_stream_error_subscription_id_does_not_exist_total rabbitmq_global_stream_error_unknown_frame_total
rabbitmq_global_stream_error_vhost_access_failure_total
"""
"""Of RabbitMQ-Stream: what it asks of the stream protocol, and its errors."""

OTHERS = """
erlang_vm_dist_node_state erlang_vm_dist_node_queue_size_bytes erlang_vm_dist_recv_bytes erlang_vm_dist_send_bytes
erlang_vm_dist_port_queue_size_bytes erlang_vm_dist_proc_status erlang_vm_allocators erlang_vm_memory_bytes_total
erlang_vm_process_count erlang_vm_statistics_run_queues_length rabbitmq_identity_info
rabbitmq_process_resident_memory_bytes rabbitmq_build_info
"""
"""Of Erlang-Distribution, Erlang-Distributions-Compare, Erlang-Memory-Allocators, Erlang-BEAM and inet_tcp_metrics."""

MEANINGLESS = ("rabbitmq_global_stream_error_", "erlang_vm_")
"""Beginnings of names that nothing here is: there is no stream protocol, and no Erlang.  `docs/http.md` says so."""

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
    assert set(OVERVIEW.split()) <= set(found)
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
    assert set(RAFT.split()) <= set(found)
    assert set(OLDER_RAFT.split()) <= set(found)

    def grew(name: str) -> float:
        return sum(value for _, value in found[name]) - sum(value for _, value in before[name])

    assert grew("rabbitmq_channel_messages_published_total") == grew("rabbitmq_global_messages_received_total") == 3
    assert grew("rabbitmq_queue_messages_published_total") == 3
    assert found["rabbitmq_raft_log_commit_index"][0][1] > before["rabbitmq_raft_log_commit_index"][0][1]
    assert found["rabbitmq_raft_commit_index"] == found["rabbitmq_raft_log_commit_index"]
    assert found["rabbitmq_raft_commit_latency_seconds"] == found["rabbitmq_raft_entry_commit_latency_seconds"]
    names = {name for name in found if name.startswith("rabbitmq_channel_")}
    assert all(not labels for name in names for labels, _ in found[name]), "a query by instance finds one line"


@pytest.mark.parametrize("asked", [STREAM, OTHERS])
def test_what_the_other_dashboards_do_not_find_has_no_meaning_here_and_the_guide_names_it(
    http: Http, asked: str
) -> None:
    missing = set(asked.split()) - set(series(http, "/metrics"))
    assert missing
    assert [name for name in missing if not name.startswith(MEANINGLESS)] == []
    guide = (Path(__file__).parents[3] / "docs/http.md").read_text()
    assert [name for name in MEANINGLESS if f"`{name}*`" not in guide] == []


def test_messages_are_counted_by_their_size_as_the_overview_asks(http: Http) -> None:
    http.do("PUT", "queues/%2F/jobs", {"durable": True}, 201)
    for size in (0, 100, 101, 10_001):
        assert http.publish("jobs", "x" * size)
    with pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "jobs", b"y" * 1000)
        channel.basic_publish("", "nowhere", b"y" * 5)
    found = series(http, "/metrics")
    protocol = {"protocol": "amqp091"}
    counts = {labels.pop("le"): count for labels, count in found["rabbitmq_message_size_bytes_bucket"]}
    assert all(labels == protocol for labels, _ in found["rabbitmq_message_size_bytes_bucket"])
    assert counts == {
        "100": 3, "1000": 5, "10000": 5, "100000": 6, "1000000": 6, "10000000": 6, "50000000": 6, "100000000": 6,
        "+Inf": 6,
    }  # fmt: skip
    assert found["rabbitmq_message_size_bytes_count"] == [(protocol, 6)]
    assert found["rabbitmq_message_size_bytes_sum"] == [(protocol, 100 + 101 + 10_001 + 1000 + 5)]
    assert found["rabbitmq_message_size_bytes_count"] == found["rabbitmq_global_messages_received_total"]


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
    found = series(http, "/metrics/detailed?family=node_metrics&family=ra_metrics")
    assert {"rabbitmq_detailed_process_max_fds", "rabbitmq_detailed_raft_log_commit_index"} <= found.keys()
    assert {"rabbitmq_detailed_raft_term_total", "rabbitmq_detailed_raft_entry_commit_latency_seconds"} <= found.keys()
    http.do("POST", "bindings/far/e/amq.topic/q/jobs", {"routing_key": "a"}, 201)
    found = series(http, "/metrics/detailed?family=exchange_names&family=exchange_bindings&vhost=far")
    told = {one["exchange"]: (one["vhost"], one["type"], n) for one, n in found["rabbitmq_cluster_exchange_bindings"]}
    assert told["amq.topic"] == ("far", "topic", 1.0)
    assert told["amq.fanout"] == ("far", "fanout", 0.0)
    assert {one["exchange"] for one, _ in found["rabbitmq_cluster_exchange_name"]} == told.keys()
    assert set(series(http, "/metrics/detailed")) == {"rabbitmq_identity_info"}


@pytest.mark.parametrize("path", ["/metrics/detailed?family=queue_metrics", "/metrics/per-object"])
def test_who_asks_for_names_logs_in(http: Http, path: str) -> None:
    assert httpx.get(f"{http.broker.http_url}{path}", verify=NO_TLS, timeout=20).status_code == 401
