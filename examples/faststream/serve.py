"""FastStream's first steps on Penstock: what comes to `greetings` is answered on `answers`.

penstock serve &
faststream run serve:app
"""

from faststream import Context, FastStream, Logger
from pydantic import BaseModel, Field

from penstock.faststream import PenstockBroker

broker = PenstockBroker("penstock://localhost")
app = FastStream(broker)


class User(BaseModel):
    """What comes."""

    user: str = Field(..., examples=["John"])
    user_id: int = Field(..., gt=0, examples=[1])


@broker.subscriber("greetings")
@broker.publisher("answers")
async def greet(user: User, logger: Logger, correlation_id: str = Context("message.correlation_id")) -> str:
    """Its argument is checked, its result is published, and the message is acknowledged."""
    logger.info("%s came with %s", user.user, correlation_id)
    return f"Hi {user.user}, you are number {user.user_id}"


@broker.subscriber("answers")
async def told(text: str) -> None:
    """Whoever is answered."""
    print(text, flush=True)


@app.after_startup
async def begin() -> None:
    """The first message."""
    await broker.publish(User(user="John", user_id=1), "greetings")
