"""Asks for what `tasks` do, and prints what came of it."""

from celery import chain, group
from tasks import add, unreliable

result = add.delay(4, 4)
print(result.get(timeout=20), result.successful())
print(unreliable.delay().get(timeout=20))
print(chain(add.s(2, 2), add.s(4), add.s(8))().get(timeout=20))
print(group(add.s(n, n) for n in range(5))().get(timeout=20))
try:
    add.delay(1, "one").get(timeout=20)
except TypeError as error:
    print("TypeError:", error)
