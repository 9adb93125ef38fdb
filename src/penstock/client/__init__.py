"""The Python client: connect, publish, consume, replay, look, over Arrow Flight."""

from penstock.client.client import Client, connect
from penstock.client.consumer import Consumer
from penstock.client.messages import Message, Receipt, Refusal, TableReceipt
from penstock.client.replay import Bookmarks, Replay
from penstock.client.transactions import Transaction

__all__ = [
    "Bookmarks",
    "Client",
    "Consumer",
    "Message",
    "Receipt",
    "Refusal",
    "Replay",
    "TableReceipt",
    "Transaction",
    "connect",
]
