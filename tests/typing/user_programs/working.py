"""Workers: the function stays what it was."""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from dataclasses import dataclass

import penstock

app = penstock.App("penstock://localhost")


@dataclass
class Order:
    """What the bodies are."""

    id: int


@app.worker("to-ship", concurrency=8, timeout="5m")
async def ship(order: Order, message: penstock.Message) -> None:
    """A body, and the message with it."""
    print(order.id, message.attempt)


@app.worker("to-ship", concurency=8)  # type: ignore[call-arg]
def misspelt(order: Order) -> None:
    """Does nothing."""


async def call() -> None:
    """It may be called as it is."""
    await ship(Order(1), "no message")  # type: ignore[arg-type]
