"""The same client for asyncio: every call of `penstock.Client` as a coroutine, consumers as async iterators.

    async with penstock.aio.connect("penstock://localhost") as client:
        async for message in client.consume("to-ship"):
            async with message:
                await ship(message.json())

Calls run in a few threads of the client's own, so the event loop never waits for the network.
"""

from penstock.client.aio.client import Client, connect
from penstock.client.aio.message import Message
from penstock.client.aio.stream import Consumer, Replay
from penstock.client.aio.transaction import Transaction
from penstock.client.messages import Receipt, Refusal, TableReceipt
from penstock.client.replaying import Bookmarks

__all__ = [
    "Bookmarks", "Client", "Consumer", "Message", "Receipt", "Refusal", "Replay", "TableReceipt", "Transaction",
    "connect",
]  # fmt: skip
