"""Settings: a misspelt name and a wrong kind of value are seen before anything runs."""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from datetime import timedelta

import penstock


def declare(client: penstock.Client) -> None:
    """What is right, and what is not."""
    client.declare("q", lease_period="30s", retry={"initial": "1s", "attempts": 8}, max_length=10, overflow="block")
    client.declare("q", lease_period=timedelta(seconds=30), max_leased={"queue": 10, "key": 2}, rate_limit="100/s")
    client.alter("q", filter=None, expires=30)
    client.declare("q", lease_periode="30s")  # type: ignore[call-arg]
    client.declare("q", overflow="blok")  # type: ignore[arg-type]
    client.declare("q", retry={"inital": "1s"})  # type: ignore[arg-type]
    client.alter("q", max_lenght=10)  # type: ignore[call-arg]


async def asynchronously(client: penstock.aio.Client) -> None:
    """The same names."""
    await client.declare("q", lease_period="30s")
    await client.declare("q", lease_periode="30s")  # type: ignore[call-arg]
    await client.alter("q", max_length="ten")  # type: ignore[arg-type]
