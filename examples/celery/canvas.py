"""Tasks that follow each other: a chain, a group, and a chord, whose last task has the results of all before it.

A chord needs a store of results that anybody may read, so both terminals say one: `RESULTS=file:///tmp/results`.
"""

from celery import chain, chord, group
from tasks import add, total

print("chain", chain(add.s(2, 2), add.s(4), add.s(8))().get(timeout=20))
print("group", group(add.s(n, n) for n in range(5))().get(timeout=20))
print("chord", chord([add.s(n, n) for n in range(5)], total.s())().get(timeout=20))
print("chord of chains", chord([chain(add.s(n, 1), add.s(1)) for n in range(3)], total.s())().get(timeout=20))
print("group, then one", (group(add.s(n, 1) for n in range(4)) | total.s()).delay().get(timeout=20))
failing = chord([add.s(1, 1), add.s(1, "one")], total.s())()
try:
    failing.get(timeout=20)
except TypeError as error:
    print("TypeError:", error)
