"""The Python client: connect, publish, consume, replay, look, over Arrow Flight."""

from penstock.client.client import Client, connect
from penstock.client.consumer import Consumer
from penstock.client.messages import Message, Receipt, Refusal, TableReceipt

__all__ = ["Client", "Consumer", "Message", "Receipt", "Refusal", "TableReceipt", "connect"]
