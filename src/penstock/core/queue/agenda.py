"""What a queue has to come back to: at once, because a step stopped at its bound, or when a moment has come.

A queue keeps one number, whose bits are these.  Bits of `AT_ONCE` say that the step is to go on now, and whoever goes
on takes the bit away.  The others stay once they are set: they say that the queue has something which knows a moment
(`core.queue.flow` has the table of these, in the order in which they are looked at).  A queue with nothing of this
has the number 0, and nobody asks further.
"""

from __future__ import annotations

PAUSE = 1 << 0  # deliveries go on when the pause is over
WEIGHING = 1 << 1  # bytes of what is ready are being counted
ATTEMPTS = 1 << 2  # at once: restored messages may have been tried too often
LEAVING = 1 << 3  # at once: a consumer that is gone still has something to give back
RANKS = 1 << 4  # ranks are put in order, or forgotten
SHARES = 1 << 5  # a tenant may send again; keys are forgotten
PACE = 1 << 6  # the queue may send again
ATTENDANCE = 1 << 7  # enough consumers are there; a delivery is out for too long
LETTERS = 1 << 8  # dead letters that were refused are tried again
LEASES = 1 << 9  # leases end
TIMES = 1 << 10  # delays end, messages expire
TRIM = 1 << 11  # at once: more is ready than limits allow, and goes before anything is given out
DISPATCH = 1 << 12  # at once: more can be granted

AT_ONCE = ATTEMPTS | LEAVING | TRIM | DISPATCH
