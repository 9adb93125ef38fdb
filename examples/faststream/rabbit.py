"""FastStream's own RabbitBroker: `faststream run rabbit:app`."""

import os

from faststream import FastStream, Logger
from faststream.rabbit import RabbitBroker
from pydantic import BaseModel, Field

broker = RabbitBroker(os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/"))
app = FastStream(broker)


class User(BaseModel):
    user: str
    user_id: int = Field(gt=0)


@broker.subscriber("in-queue")
@broker.publisher("out-queue")
async def handle_msg(data: User, logger: Logger) -> str:
    logger.info("%s", data)
    return f"User: {data.user_id} - {data.user} registered"


@app.after_startup
async def send_one() -> None:
    await broker.publish({"user": "John", "user_id": 1}, "in-queue")
