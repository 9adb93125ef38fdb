"""Who may do what, written by hand: a rule for each operation, and which operation each request over each door is.

Nothing here is taken from the server.  A path, action, command or method without a row fails `test_rights`, and one
operation has one rule on all doors; the paths of HTTP are for users with a tag beside that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.wire.amqp import methods as m
from rights_house import GONE, HELD, User

MONITORS = frozenset({"monitoring", "administrator"})

RULES: Mapping[str, Callable[[User], bool]] = {
    "anybody": lambda user: True,
    "tagged": lambda user: bool(user.tag),
    "opens": lambda user: user.opens,  # has the vhost, whatever it may do there
    "sees": lambda user: user.opens or user.tag in MONITORS,
    "uses": lambda user: user.has == "all",  # its permission allows this with this name
    "reads or monitors": lambda user: user.has == "all" or user.tag in MONITORS,
    "all of it": lambda user: user.has == "all" or user.tag == "administrator",
    "policies": lambda user: user.tag == "administrator" or (user.tag == "policymaker" and user.opens),
    "policymakers": lambda user: user.tag in {"policymaker", "administrator"},
    "monitors": lambda user: user.tag in MONITORS,
    "administrators": lambda user: user.tag == "administrator",
}

OPERATIONS: Mapping[str, str] = {
    # the server
    "overview": "anybody",
    "health": "anybody",
    "names of the server": "anybody",
    "node": "monitors",
    "log files": "monitors",
    "log work": "administrators",
    "drain": "administrators",
    "watch": "anybody",
    "hash": "anybody",
    "own of a vhost": "opens",
    "own": "anybody",  # what belongs to the user, or is known to who was given its name
    # a vhost, and what is in it
    "list": "anybody",  # each sees what is in the vhosts that it sees
    "list of a vhost": "sees",
    "look at a queue": "sees",
    "look at an exchange": "sees",
    "look at policies": "sees",
    "declare a queue": "uses",
    "delete a queue": "uses",
    "read a queue": "uses",
    "purge a queue": "uses",
    "tend a queue": "all of it",
    "tend messages": "all of it",
    "exchange": "uses",
    "bind": "uses",
    "publish": "uses",
    "read a topic": "uses",
    "look at a topic": "reads or monitors",
    "topic": "all of it",
    "records": "uses",
    "query": "opens",
    "stream": "uses",
    "policy": "policies",
    "operator policy": "administrators",
    "list parameters": "policymakers",
    "look at parameters": "policies",
    "parameter": "administrators",
    "definitions of a vhost": "policies",
    "definitions": "administrators",
    "alive": "uses",
    # people
    "people": "administrators",
    "vhost": "administrators",
    "see a vhost": "sees",
    "values": "policymakers",
    "connections of others": "monitors",
    "close connections of others": "administrators",
    # durable readers, writers, pipelines
    "streams": "monitors",
    "pipelines": "monitors",
    "report": "administrators",  # and whom pipelines act as
}

THREE_OF: Mapping[str, frozenset[str]] = {
    "declare a queue": frozenset(),  # that is there: any of the three
    "delete a queue": frozenset({"configure"}),
    "read a queue": frozenset({"read"}),
    "purge a queue": frozenset({"read"}),
    "exchange": frozenset({"configure"}),
    "bind": frozenset({"write", "read"}),
    "publish": frozenset({"write"}),
    "read a topic": frozenset({"read"}),
    "look at a topic": frozenset({"read"}),
    "records": frozenset({"write"}),
    "stream": frozenset({"read"}),
    "alive": frozenset({"write", "read"}),  # its queue is there
    **{name: frozenset({"configure", "write", "read"}) for name, rule in OPERATIONS.items() if rule == "all of it"},
}
"""Which of the three words of a permission an operation takes, if it takes some; none here: any of them will do."""


class Way(NamedTuple):
    """One request.  other: kinds of answers that say that it was allowed, beside success."""

    operation: str
    body: object = None
    other: str = ""


class Method(NamedTuple):
    """One method of AMQP; {0} stands for what it is about.  before: what comes first on its channel."""

    operation: str
    make: Callable[[str], m.Method] | None = None
    before: tuple[m.Method, ...] = ()
    other: str = ""


VARIABLES: Mapping[str, str] = {
    "/api/nodes/": "name=penstock-1",
    "/api/healthchecks/": "name=penstock-1",
    "PUT /api/vhosts/": "vhost=held-vhost",
    "DELETE /api/vhosts/": "vhost=held-vhost",
    "/api/vhost-limits/{vhost}/": "vhost=held-vhost&name=max-queues",
    "/api/user-limits/": "user=held-user&name=max-channels",
    "/api/users/": "user=held-user",
    "/api/permissions/": "vhost=/&user=held-user",
    "/api/topic-permissions/": "vhost=/&user=held-user",
    "/api/bindings/{vhost}/e/{source}/e/": "destination=held-too",
    "/api/parameters/": "component=operator_policy",
    "/api/connections/": "name=CONNECTION",
    "/api/connections/username/": "user=held-user",
    "/api/channels/": "name=CONNECTION (1)",
    "/api/pipelines/": "name=held-pipeline",
    "/api/health/checks/": "within=1&unit=days&port=PORT&protocol=http",
    "/api/auth/": "password=x",
}
"""What stands for the variables of paths that begin so, the longest that fits first; `held` and `/` for the others."""

_GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
_MESSAGE = {"routing_key": HELD, "payload": "x", "payload_encoding": "string", "properties": {}}
_POLICY = {"pattern": "^held$", "definition": {"max-length": 1000}, "apply-to": "queues"}
_PERMISSION = {"configure": ".*", "write": ".*", "read": ".*"}

HTTP: Mapping[str, Way] = {
    "GET /api/overview": Way("overview"),
    "GET /api/whoami": Way("own"),
    "GET /api/log": Way("log files"),
    "GET /api/topics": Way("list"),
    "GET /api/views": Way("streams"),
    "GET /api/streams": Way("streams"),
    "GET /api/nodes": Way("node"),
    "GET /api/nodes/{name}": Way("node"),
    "GET /api/nodes/{name}/memory": Way("node"),
    "GET /api/cluster": Way("node", other="404"),
    "GET /api/tokens": Way("own"),
    "POST /api/tokens": Way("own of a vhost", {"lasts_s": 5}),
    "POST /api/tokens/{token}/renew": Way("own", {}, other="404"),
    "DELETE /api/tokens/{token}": Way("own", other="404"),
    "GET /api/links": Way("node"),
    "POST /api/links/{link}/pause": Way("drain", {}, other="404"),
    "POST /api/links/{link}/resume": Way("drain", {}, other="404"),
    "POST /api/queues/{vhost}/{name}/proxy": Way("drain", {"off": True}),
    "POST /api/cluster/switchover": Way("drain", {}, other="404"),
    "POST /api/cluster/remove": Way("drain", {"member": "none"}, other="404"),
    "POST /api/cluster/finalize": Way("drain", {}, other="404"),
    "GET /api/cluster-name": Way("names of the server"),
    "GET /api/feature-flags": Way("names of the server"),
    "GET /api/deprecated-features": Way("names of the server"),
    "GET /api/deprecated-features/used": Way("names of the server"),
    "GET /api/extensions": Way("names of the server"),
    "GET /api/federation-links": Way("log work"),
    "GET /api/auth": Way("names of the server"),
    "GET /api/openapi.json": Way("names of the server"),
    "GET /api/queues": Way("list"),
    "GET /api/queues/detailed": Way("list"),
    "GET /api/queues/{vhost}": Way("list of a vhost"),
    "GET /api/queues/{vhost}/{name}": Way("look at a queue"),
    "GET /api/consumers": Way("list"),
    "GET /api/consumers/{vhost}": Way("list of a vhost"),
    "PUT /api/queues/{vhost}/{name}": Way("declare a queue", {}),
    "DELETE /api/queues/{vhost}/{name}": Way("delete a queue"),
    "DELETE /api/queues/{vhost}/{name}/contents": Way("purge a queue"),
    "GET /api/exchanges": Way("list"),
    "GET /api/exchanges/{vhost}": Way("list of a vhost"),
    "GET /api/exchanges/{vhost}/{name}": Way("look at an exchange"),
    "PUT /api/exchanges/{vhost}/{name}": Way("exchange", {"type": "topic"}),
    "DELETE /api/exchanges/{vhost}/{name}": Way("exchange"),
    "PUT /api/stream/super-streams/{vhost}/{name}": Way("exchange", {"partitions": 1}, other="400"),
    "GET /api/bindings": Way("list"),
    "GET /api/bindings/{vhost}": Way("list of a vhost"),
    "GET /api/queues/{vhost}/{name}/bindings": Way("look at a queue"),
    "GET /api/exchanges/{vhost}/{name}/bindings/source": Way("look at an exchange"),
    "GET /api/exchanges/{vhost}/{name}/bindings/destination": Way("look at an exchange"),
    "GET /api/bindings/{vhost}/e/{source}/q/{destination}": Way("look at a queue"),
    "POST /api/bindings/{vhost}/e/{source}/q/{destination}": Way("bind", {"routing_key": "held"}),
    "GET /api/bindings/{vhost}/e/{source}/q/{destination}/{props}": Way("look at a queue"),
    "DELETE /api/bindings/{vhost}/e/{source}/q/{destination}/{props}": Way("bind"),
    "GET /api/bindings/{vhost}/e/{source}/e/{destination}": Way("look at an exchange"),
    "POST /api/bindings/{vhost}/e/{source}/e/{destination}": Way("bind", {"routing_key": "held"}),
    "GET /api/bindings/{vhost}/e/{source}/e/{destination}/{props}": Way("look at an exchange"),
    "DELETE /api/bindings/{vhost}/e/{source}/e/{destination}/{props}": Way("bind"),
    "GET /api/users": Way("people"),
    "GET /api/users/without-permissions": Way("people"),
    "POST /api/users/bulk-delete": Way("people", {"users": ["held-user"]}),
    "GET /api/users/{user}": Way("people"),
    "PUT /api/users/{user}": Way("people", {"tags": ""}),
    "DELETE /api/users/{user}": Way("people"),
    "GET /api/users/{user}/permissions": Way("people"),
    "GET /api/users/{user}/topic-permissions": Way("people"),
    "GET /api/permissions": Way("people"),
    "GET /api/permissions/{vhost}/{user}": Way("people"),
    "PUT /api/permissions/{vhost}/{user}": Way("people", _PERMISSION),
    "DELETE /api/permissions/{vhost}/{user}": Way("people"),
    "GET /api/topic-permissions": Way("people"),
    "GET /api/topic-permissions/{vhost}/{user}": Way("people"),
    "PUT /api/topic-permissions/{vhost}/{user}": Way("people", {"exchange": "held", "write": ".*", "read": ".*"}),
    "DELETE /api/topic-permissions/{vhost}/{user}": Way("people"),
    "GET /api/user-limits": Way("people"),
    "GET /api/user-limits/{user}": Way("people"),
    "PUT /api/user-limits/{user}/{name}": Way("people", {"value": 7}),
    "DELETE /api/user-limits/{user}/{name}": Way("people"),
    "GET /api/auth/hash_password/{password}": Way("hash"),
    "GET /api/vhosts": Way("list"),
    "GET /api/vhosts/{vhost}": Way("see a vhost"),
    "PUT /api/vhosts/{vhost}": Way("vhost", {}),
    "DELETE /api/vhosts/{vhost}": Way("vhost"),
    "GET /api/vhosts/{vhost}/permissions": Way("people"),
    "GET /api/vhosts/{vhost}/topic-permissions": Way("people"),
    "GET /api/vhost-limits": Way("list"),
    "GET /api/vhost-limits/{vhost}": Way("list of a vhost"),
    "PUT /api/vhost-limits/{vhost}/{name}": Way("vhost", {"value": 7}),
    "DELETE /api/vhost-limits/{vhost}/{name}": Way("vhost"),
    "GET /api/global-parameters": Way("values"),
    "GET /api/global-parameters/{name}": Way("values"),
    "PUT /api/global-parameters/{name}": Way("people", {"value": 1}),
    "DELETE /api/global-parameters/{name}": Way("people"),
    "PUT /api/cluster-name": Way("people", {"name": "x"}),
    "POST /api/exchanges/{vhost}/{name}/publish": Way("publish", _MESSAGE),
    "POST /api/queues/{vhost}/{name}/get": Way("read a queue", _GET),
    "GET /api/connections": Way("list"),
    "GET /api/connections/{name}": Way("connections of others"),
    "DELETE /api/connections/{name}": Way("close connections of others"),
    "GET /api/connections/{name}/channels": Way("connections of others"),
    "GET /api/connections/username/{user}": Way("list"),
    "DELETE /api/connections/username/{user}": Way("close connections of others"),
    "GET /api/vhosts/{vhost}/connections": Way("list of a vhost"),
    "GET /api/vhosts/{vhost}/channels": Way("list of a vhost"),
    "GET /api/channels": Way("list"),
    "GET /api/channels/{name}": Way("connections of others"),
    "GET /api/policies": Way("list"),
    "GET /api/policies/{vhost}": Way("look at policies"),
    "GET /api/policies/{vhost}/{name}": Way("look at policies"),
    "PUT /api/policies/{vhost}/{name}": Way("policy", _POLICY),
    "DELETE /api/policies/{vhost}/{name}": Way("policy"),
    "GET /api/operator-policies": Way("list"),
    "GET /api/operator-policies/{vhost}": Way("look at policies"),
    "GET /api/operator-policies/{vhost}/{name}": Way("look at policies"),
    "PUT /api/operator-policies/{vhost}/{name}": Way("operator policy", _POLICY),
    "DELETE /api/operator-policies/{vhost}/{name}": Way("operator policy"),
    "GET /api/parameters": Way("list parameters"),
    "GET /api/parameters/{component}": Way("list parameters"),
    "GET /api/parameters/{component}/{vhost}": Way("look at parameters"),
    "GET /api/parameters/{component}/{vhost}/{name}": Way("look at parameters"),
    "PUT /api/parameters/{component}/{vhost}/{name}": Way("parameter", {"value": _POLICY}),
    "DELETE /api/parameters/{component}/{vhost}/{name}": Way("parameter"),
    "GET /api/definitions": Way("definitions"),
    "POST /api/definitions": Way("definitions", {"queues": []}),
    "GET /api/definitions/{vhost}": Way("definitions of a vhost"),
    "POST /api/definitions/{vhost}": Way("definitions", {"queues": []}),
    "GET /api/pipelines": Way("pipelines"),
    "GET /api/pipelines/{name}": Way("pipelines"),
    "GET /api/queues/{vhost}/{name}/explain": Way("look at a queue"),
    "GET /api/queues/{vhost}/{name}/peek": Way("read a queue"),
    "GET /api/queues/{vhost}/{name}/leases": Way("read a queue"),
    "POST /api/queues/{vhost}/{name}/pause": Way("tend a queue", {}),
    "POST /api/queues/{vhost}/{name}/resume": Way("tend a queue", {}),
    "POST /api/queues/{vhost}/{name}/redrive": Way("tend a queue", {}),
    "POST /api/queues/{vhost}/{name}/move": Way("tend a queue", {"to": "held-too"}),
    "POST /api/query": Way("query", {"sql": "SELECT 1"}),
    "GET /api/events": Way("watch"),
    "GET /api/health/checks/alarms": Way("health"),
    "GET /api/health/checks/local-alarms": Way("health"),
    "GET /api/health/checks/virtual-hosts": Way("health"),
    "GET /api/health/checks/is-in-service": Way("health"),
    "GET /api/health/checks/ready-to-serve-clients": Way("health"),
    "GET /api/health/checks/below-node-connection-limit": Way("health"),
    "GET /api/health/checks/node-is-quorum-critical": Way("health"),
    "GET /api/health/checks/node-is-mirror-sync-critical": Way("health"),
    "GET /api/health/checks/quorum-queues-without-elected-leaders/all-vhosts": Way("health"),
    "GET /api/health/checks/certificate-expiration/{within}/{unit}": Way("health"),
    "GET /api/health/checks/port-listener/{port}": Way("health"),
    "GET /api/health/checks/protocol-listener/{protocol}": Way("health"),
    "GET /api/healthchecks/node": Way("health"),
    "GET /api/healthchecks/node/{name}": Way("health"),
    "GET /api/aliveness-test/{vhost}": Way("alive"),
}

_STREAM = {"stream": "held-stream"}
_TOPIC = {"topic": "held-topic"}
_QUEUE = {"queue": HELD}
_POLICY_ACT = {"policy": HELD, "pattern": "^held$", "definition": {"max-length": 1000}}
_ONES = {"user": "held-user"}

ACTIONS: Mapping[str, Way] = {
    "declare": Way("declare a queue", _QUEUE),
    "alter": Way("tend a queue", {**_QUEUE, "settings": {}}),
    "delete": Way("delete a queue", _QUEUE),
    "purge": Way("purge a queue", _QUEUE),
    "declare_exchange": Way("exchange", {"exchange": HELD, "type": "topic"}),
    "delete_exchange": Way("exchange", {"exchange": HELD}),
    "bind": Way("bind", {"exchange": HELD, **_QUEUE, "key": "held"}),
    "unbind": Way("bind", {"exchange": HELD, **_QUEUE, "key": "held"}),
    "declare_topic": Way("topic", _TOPIC, "PreconditionFailed"),
    "register_schema": Way("topic", {**_TOPIC, "schema": "id bigint"}),
    "delete_topic": Way("topic", _TOPIC),
    "topics": Way("list of a vhost", {}),
    "topic": Way("look at a topic", _TOPIC),
    "sow_delete": Way("records", {**_TOPIC, "keys": ["1"]}, "NotFound InvalidArgument"),
    "stats": Way("look at a queue", _QUEUE),
    "details": Way("look at a queue", _QUEUE),
    "list": Way("list of a vhost", {}),
    "explain": Way("look at a queue", _QUEUE),
    "pause": Way("tend a queue", _QUEUE),
    "resume": Way("tend a queue", _QUEUE),
    "redrive": Way("tend a queue", _QUEUE),
    "move": Way("tend a queue", {**_QUEUE, "to": "held-too"}),
    "story": Way("tend messages", {"bookmark": "1"}, "NotFound"),
    "cancel": Way("tend messages", {**_QUEUE, "bookmark": "1"}, "NotFound"),
    "reschedule": Way("tend messages", {**_QUEUE, "bookmark": "1", "wait": 5}, "NotFound"),
    "ack": Way("read a queue", {**_QUEUE, "bookmarks": ["1|1|"]}, "InvalidArgument"),
    "ack_filter": Way("read a queue", {**_QUEUE, "filter": "/n = 1"}),
    "exchanges": Way("list of a vhost", {}),
    "bindings": Way("list of a vhost", {}),
    "policies": Way("look at policies", {}),
    "policy_set": Way("policy", _POLICY_ACT),
    "policy_delete": Way("policy", {"policy": HELD}),
    "health": Way("health", {}),
    "overview": Way("overview", {}),
    "position": Way("names of the server", {}),
    "segments": Way("log files", {}),
    "cuts": Way("query", _TOPIC),
    "locate": Way("read a topic", _TOPIC),
    "hold": Way("own", {"read": "r", "start": 1}),
    "publisher": Way("own of a vhost", {"publisher": "p"}),
    "replay_pause": Way("own", {"id": "none"}, "NotFound"),
    "replay_resume": Way("own", {"id": "none"}, "NotFound"),
    "stage_drop": Way("own", {"stages": []}),
    "sink": Way("own", {"query": "none"}),
    "sink_commit": Way("own", {"query": "none", "batch": 1, "stages": []}),
    "stages": Way("streams", {}),
    "sinks": Way("streams", {}),
    "streams": Way("streams", {}),
    "stream_open": Way("stream", {**_STREAM, **_QUEUE}),
    "stream_begin": Way("stream", _STREAM, "PreconditionFailed InvalidArgument"),
    "stream_resume": Way("stream", {**_STREAM, "batch": 1}, "PreconditionFailed InvalidArgument NotFound"),
    "stream_lag": Way("stream", _STREAM),
    "stream_release": Way("stream", _STREAM),
    "plan": Way("stream", {**_STREAM, "start": 0}),
    "plan_changes": Way("stream", {**_STREAM, **_QUEUE, "start": 0}, "PreconditionFailed InvalidArgument"),
    "plan_range": Way("stream", {**_STREAM, "start": 0}, "PreconditionFailed InvalidArgument"),
    "range_parts": Way("stream", {**_STREAM, "start": 0, "end": 0}, "PreconditionFailed InvalidArgument"),
    "settle": Way("stream", {**_STREAM, "batch": 0}),
    "pipeline_report": Way("report", {"driver": "d", "pipelines": {"held-pipeline": {"state": "running"}}}),
    "pipeline_leave": Way("report", {"pipelines": ["none"]}),
    "pipeline_status": Way("pipelines", {"pipeline": "held-pipeline"}),
    "backup": Way("log work", {"target": "\0"}, "InvalidArgument"),
    "log_verify": Way("log work", {}),
    "log_audit": Way("log work", {}),
    "log_archive": Way("log work", {}, "PreconditionFailed"),
    "log_archive_prune": Way("log work", {"age": 1}, "PreconditionFailed"),
    "compact": Way("log work", {"dry_run": True}),
    "drain": Way("drain", {"look": True}),
    "cluster_switchover": Way("drain", {}, "NotFound"),
    "tokens": Way("own", {}),
    "token_issue": Way("own of a vhost", {"lasts_s": 5}),
    "token_renew": Way("own", {"token": "none"}, "NotFound"),
    "token_revoke": Way("own", {"token": "none"}, "NotFound"),
    "links": Way("node", {}),
    "link_pause": Way("drain", {"link": "none"}, "NotFound"),
    "link_resume": Way("drain", {"link": "none"}, "NotFound"),
    "link_proxy": Way("drain", {**_QUEUE, "off": True}),
    "cluster_remove": Way("drain", {"member": "none"}, "NotFound"),
    "cluster_finalize": Way("drain", {}, "NotFound"),
    "connections": Way("list", {}),
    "connection_close": Way("close connections of others", _ONES),
    "users": Way("people", {}),
    "user_set": Way("people", {**_ONES, "tags": []}),
    "user_delete": Way("people", _ONES),
    "permissions": Way("people", {}),
    "permission_set": Way("people", {**_ONES, **_PERMISSION}),
    "permission_delete": Way("people", _ONES),
    "vhosts": Way("list", {}),
    "vhost_set": Way("vhost", {"vhost": "held-vhost"}),
    "vhost_delete": Way("vhost", {"vhost": "held-vhost"}),
    "limits": Way("people", {}),
    "limit_set": Way("people", {**_ONES, "limit": "max-channels", "value": 7}),
}

GETS: Mapping[str, Way] = {
    "queue": Way("read a queue", {"name": HELD}),
    "replay": Way("read a topic", _TOPIC),
    "sow": Way("read a topic", _TOPIC),
    "subscribe": Way("read a topic", _TOPIC),
    "sql": Way("query", {"statement": "SELECT 1"}),
    "plan": Way("stream", {**_STREAM, "batch": 1}, "NotFound PreconditionFailed InvalidArgument"),
    "log": Way("log work", {"from": 1, "to": 1}),
}

PUTS: Mapping[str, Way] = {
    "publish": Way("publish", {"topic": HELD}),
    "stage": Way("publish", {"topic": HELD, "query": "none", "batch": 9, "partition": 0}, "InvalidArgument"),
    "transact": Way("publish", {}, "InvalidArgument"),
}

EXCHANGES: Mapping[str, Way] = {
    "consume": Way("read a queue", _QUEUE),
    "link": Way("drain", {"name": "none", "site": "x", "origin": "5"}, "PreconditionFailed"),
}

_NONE = Method("")
"""Asks for nothing: it is about a connection, a channel, or what a consumer of the channel was given."""

METHODS: Mapping[type[m.Method], Method] = {
    m.ConnectionStartOk: _NONE,
    m.ConnectionSecureOk: _NONE,
    m.ConnectionTuneOk: _NONE,
    m.ConnectionOpen: Method("query"),
    m.ConnectionClose: _NONE,
    m.ConnectionCloseOk: _NONE,
    m.ConnectionUpdateSecret: _NONE,
    m.ChannelOpen: _NONE,
    m.ChannelFlow: _NONE,
    m.ChannelFlowOk: _NONE,
    m.ChannelClose: _NONE,
    m.ChannelCloseOk: _NONE,
    m.QueueDeclare: Method("declare a queue", lambda name: m.QueueDeclare(0, name, durable=True)),
    m.QueueBind: Method("bind", lambda name: m.QueueBind(0, name, HELD, "held")),
    m.QueueUnbind: Method("bind", lambda name: m.QueueUnbind(0, name, HELD, "held")),
    m.QueuePurge: Method("purge a queue", lambda name: m.QueuePurge(0, name)),
    m.QueueDelete: Method("delete a queue", lambda name: m.QueueDelete(0, name)),
    m.ExchangeDeclare: Method("exchange", lambda name: m.ExchangeDeclare(0, name, "topic", durable=True)),
    m.ExchangeDelete: Method("exchange", lambda name: m.ExchangeDelete(0, name)),
    m.ExchangeBind: Method("bind", lambda name: m.ExchangeBind(0, "held-too", name, "held")),
    m.ExchangeUnbind: Method("bind", lambda name: m.ExchangeUnbind(0, "held-too", name, "held")),
    m.BasicQos: _NONE,
    m.BasicConsume: Method("read a queue", lambda name: m.BasicConsume(0, name, "tag")),
    m.BasicCancel: _NONE,
    m.BasicCancelOk: _NONE,
    m.BasicPublish: Method("publish", lambda name: m.BasicPublish(0, name, "held"), (m.ConfirmSelect(),)),
    m.BasicGet: Method("read a queue", lambda name: m.BasicGet(0, name)),
    m.BasicAck: _NONE,
    m.BasicReject: _NONE,
    m.BasicNack: _NONE,
    m.BasicRecover: _NONE,
    m.BasicRecoverAsync: _NONE,
    m.ConfirmSelect: _NONE,
    m.TxSelect: _NONE,
    m.TxCommit: _NONE,
    m.TxRollback: _NONE,
}

PASSIVE: Mapping[str, Method] = {
    "a queue": Method("declare a queue", lambda name: m.QueueDeclare(0, name, passive=True)),
    "an exchange": Method("exchange", lambda name: m.ExchangeDeclare(0, name, "topic", passive=True)),
}
"""Other ways to ask the same."""


def changes(operation: str) -> bool:
    """Whether it may change what others ask about."""
    looks = ("list", "look at", "see ", "overview", "health", "names of", "node", "log files", "hash", "query")
    return not operation.startswith(looks)


def allowed(operation: str, user: User) -> bool:
    """Whether a user may do it."""
    return RULES[OPERATIONS[operation]](user)


def variables(row: str) -> dict[str, str]:
    """What stands in a path for its variables."""
    found = {"vhost": "/", "name": HELD, "source": HELD, "destination": HELD, "props": HELD}
    for beginning in sorted(VARIABLES, key=len):
        if row.startswith(beginning) or row.partition(" ")[2].startswith(beginning):
            found |= dict(one.split("=") for one in VARIABLES[beginning].split("&"))
    return found


def without(values: Mapping[str, object]) -> dict[str, object]:
    """The same request about what is not there."""
    return {key: GONE if isinstance(value, str) and value.startswith(HELD) else value for key, value in values.items()}
