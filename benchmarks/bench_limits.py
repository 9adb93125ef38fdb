"""Publishing into full queues: what drop-head and a ring add to a plain publish.

    PYTHONPATH=src python benchmarks/bench_limits.py [--quick] [--messages 200000]

Microseconds of CPU a message in the core and in the encoder of the log, batches of 500 messages of 100 bytes as one
read of a socket brings them; then how many times the whole server's budget for a publish that makes with a full queue.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from harness import emit, parse, parser

from penstock.core.broker import Core
from penstock.log.encode import Encoder
from penstock.records.chunks import Now
from penstock.records.entries import Publishes
from penstock.records.properties import Properties, encode
from penstock.records.queue_settings import QueueSettings

START = 1_700_000_000_000_000
HEADER = encode(Properties(delivery_mode=2))
BATCH = 500
LENGTH = 1_000
BODY = b"x" * 100

PLAIN = QueueSettings()
FULL: Mapping[str, QueueSettings] = {
    "drop-head": QueueSettings(max_length=LENGTH),
    "drop-head by bytes": QueueSettings(max_length_bytes=LENGTH * len(BODY)),
    "ring": QueueSettings(ring_size=LENGTH),
}


def publishing(settings: QueueSettings, messages: int) -> float:
    """Microseconds a message into a queue that is full from the start, as far as it can be."""
    core = Core(7)
    now = Now(START, 0)
    core.boot(now, clean=True, next_lsn=1)
    core.declare_queue(now, "/", "q", settings)
    topic = core.topic("/", "", "q")
    core.publish(now, Publishes(topic, HEADER, [BODY] * LENGTH))
    core.take_journal()
    encoder = Encoder()
    rounds = max(messages // BATCH, 20)
    start = time.process_time()
    for _ in range(rounds):
        core.publish(now, Publishes(topic, HEADER, [BODY] * BATCH, size=BATCH * (len(BODY) + len(HEADER))))
        encoder.encode(core.take_journal(), 0)
        core.take_effects()
    return (time.process_time() - start) / rounds / BATCH * 1e6


def main() -> None:
    """Measure and print."""
    options = parse(parser(__doc__ or "", messages=500_000))
    settings = {"messages": options.messages, "batch": BATCH, "limit": LENGTH}
    plain = [publishing(PLAIN, options.messages) for _ in range(options.repeat)]
    usual = emit("publish, core and encoder, no limit", plain, "us/msg", settings=settings)
    for what, limited in FULL.items():
        runs = [publishing(limited, options.messages) for _ in range(options.repeat)]
        emit(f"publish, core and encoder, full queue, {what}", runs, "us/msg", settings=settings)
        more = [1 + max(run - usual, 0) / PUBLISH_US for run in runs]
        emit(f"publish into a full queue, {what}", more, "times", budget=1.3, settings=settings)


PUBLISH_US = 1.35
"""What a plain publish may cost the server altogether: to it a full queue adds what is measured here."""


if __name__ == "__main__":
    main()
