"""The Flight door: server CPU of publishing and of replaying batches of 10,000 rows.

    python benchmarks/bench_flight.py --messages 2000000 --batch 10000

100-byte bodies; each batch is answered when it is durable, at most four are unanswered.  Replay reads the topic from
its beginning; every body is compared, after the clock has stopped.
"""

from __future__ import annotations

from bench_amqp import Place
from flight_client import Came, Door, rows
from harness import Server, Span, Wrong, emit, filesystem, parse, parser, work_folder


def main() -> None:
    """Publish and replay, a fresh topic for each run."""
    options = parser(__doc__ or "", messages=1_000_000)
    options.add_argument("--batch", type=int, default=10_000, help="rows in a batch")
    options.add_argument("--ahead", type=int, default=4, help="batches that may be unanswered")
    given = parse(options)
    size = min(given.batch, given.messages)
    count = max(1, given.messages // size)
    n = count * size
    published: list[Span] = []
    replayed: list[Span] = []
    batches = [rows(number * size, size) for number in range(count)]
    settings: dict[str, object] = {"messages": n, "batch": size, "ahead": given.ahead, "sync": "commit"}
    with work_folder(given.folder) as folder, Server(folder, flight=True) as server:
        settings["filesystem"] = filesystem(folder)
        with Door(server.address("flight")) as door:
            for run in range(given.repeat):
                place = Place.uniform(server.address("amqp"), f"bench{run}")
                with Span(server) as span:
                    door.publish(place.name, batches, given.ahead)
                published.append(span)
                with Span(server) as span:
                    came: list[Came] = list(door.replay(place.name))
                replayed.append(span)
                first = 0
                for batch in came:
                    first = batch.check(first)
                if first != n:
                    raise Wrong(f"{n} rows were published, replay has {first}")
                place.remove()
        server.stop()
    for what, spans, budget in (("publish", published, 0.4), ("replay", replayed, 0.2)):
        cpu = [span.server_s / n * 1e6 for span in spans]
        emit(f"Flight {what}: server CPU", cpu, "us/message", budget=budget, settings=settings)
        rates = [n / span.wall_s for span in spans]
        emit(f"Flight {what}: rate", rates, "messages/s", sense="at least", settings=settings)


if __name__ == "__main__":
    main()
