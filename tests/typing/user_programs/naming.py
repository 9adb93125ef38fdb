"""Names: what annotations need is there, and a misspelt one is seen before anything runs."""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from dataclasses import dataclass

import penstock
import penstock.testing
from penstock.client import Batch, Consumer, Receipt, Replay, Result, TableReceipt, Task, Transaction


@dataclass
class Order:
    """A body."""

    id: int


def parts(
    consumer: Consumer[Order], batch: Batch[Order], replay: Replay, receipt: Receipt, rows: TableReceipt, result: Result
) -> tuple[int, str, int]:
    """What functions of a user's own are given."""
    message = replay.take(1.5) or consumer.take(0.5)
    print(message, result.rows(), batch.unsettled)
    return rows.replies, receipt.outcome, 0 if message is None else message.lsn


def begun(client: penstock.Client) -> tuple[Task, Transaction]:
    """What the client makes."""
    return client.submit("sums", [1, 2]), client.transaction()


def misspelt() -> None:
    """Each is an error."""
    penstock.conect("penstock://localhost")  # type: ignore[attr-defined]
    penstock.testing.Brocker({})  # type: ignore[attr-defined]
    print(penstock.Recept)  # type: ignore[attr-defined]
