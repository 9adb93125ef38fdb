"""AMQP reply codes for our errors, by class of error."""

from __future__ import annotations

from penstock.errors import (
    AccessRefused,
    DiskFull,
    Draining,
    ExpressionError,
    InvalidArgument,
    NotFound,
    PenstockError,
    PreconditionFailed,
    ProtocolError,
    QueueFull,
    ResourceLocked,
)


def reply_code(error: PenstockError) -> tuple[int, str, bool]:
    """The code, the text without the code's name, and whether the whole connection closes."""
    whole = False
    match error:
        case ProtocolError():
            code = error.reply_code
            whole = error.scope == "connection"
        case NotFound():
            code = 404
        case AccessRefused():
            code = 403
        case ResourceLocked():
            code = 405
        case PreconditionFailed() | InvalidArgument() | ExpressionError() | QueueFull():
            code = 406
        case DiskFull() | Draining():
            code = 506
        case _:
            code = 541
    if isinstance(error, ExpressionError):
        return code, f"{error}: character {error.place + 1} of {cut(error.text)}", whole
    return code, str(error), whole


def cut(text: str) -> str:
    """A text quoted, and cut to what an answer of 255 bytes has room for."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
