"""How long acks take, as metrics tell it."""

from __future__ import annotations

from penstock.server.cluster.log_sending import BOUNDS, AckTimes, Unacked


def test_each_piece_is_counted_when_all_of_it_is_acked() -> None:
    times = AckTimes()
    one, other = Unacked(times), Unacked(times)
    for upto, now in ((100, 1.0), (250, 1.5), (400, 2.0)):
        one.sent(upto, now)
    other.sent(7, 2.0)
    one.acked(99, 1.2)
    assert times.plain() == {"counts": [0] * (len(BOUNDS) + 1), "sum": 0.0}
    one.acked(250, 1.75)
    one.acked(250, 1.9)
    other.acked(7, 9.0)
    assert times.plain() == {
        "counts": [sum((bound >= 0.75, bound >= 0.25, bound >= 7.0)) for bound in (*BOUNDS, 1e9)],
        "sum": 8.0,
    }
