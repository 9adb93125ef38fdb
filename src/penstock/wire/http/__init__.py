"""HTTP: health, metrics, and queues in the shape that RabbitMQ's tools read.

Owns paths, status codes, field names and metric names.  What they report comes through `facts.ServerFacts`; it knows
neither queue rules nor the server that answers.
"""

from penstock.wire.http.app import create_app
from penstock.wire.http.facts import Metrics, QueueMetrics, ServerFacts

__all__ = ["Metrics", "QueueMetrics", "ServerFacts", "create_app"]
