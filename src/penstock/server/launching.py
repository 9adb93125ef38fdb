"""The first thing that a server's process does: what Arrow and gRPC read from the environment as they are loaded.

Both come with `server.process`, so this module imports neither.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.server.opening.progress import Show

GRPC_VERBOSITY = "GRPC_VERBOSITY"
"""gRPC and its protobuf write a line to standard error for each malformed message, before anybody has logged in: a
stranger would fill the disk that the server's output goes to.  An operator who looks for something sets it himself."""

POOL = "ARROW_DEFAULT_MEMORY_POOL"
RESERVED, NO_MORE = "MIMALLOC_RESERVE_OS_MEMORY", "MIMALLOC_DISALLOW_OS_ALLOC"
"""mimalloc takes one piece of address space as it is loaded, and then asks the system for none."""

LEAST, MOST, SHARE = 128 << 20, 512 << 20, 4
"""Two batches of the largest size that a server of a budget takes (`wire.flight.received.Bounds`), or a share of it."""


def serve(settings: Settings, *, ready_file: str | None = None, show: Show | None = None) -> None:
    """Run a server until SIGTERM or SIGINT, as `process.serve`."""
    os.environ.setdefault(GRPC_VERBOSITY, "NONE")
    with_bounded_pool(decoded_most(settings.server.memory))
    from penstock.server.process import serve as run

    run(settings, ready_file=ready_file, show=show)


def decoded_most(memory: int) -> int:
    """Bytes that Arrow's own pool may have, from which Flight takes what it decompresses.  memory: the budget."""
    return max(LEAST, min(MOST, memory), memory // SHARE)


def with_bounded_pool(most: int) -> None:
    """Load Arrow so that its own pool has so many bytes and no more.

    pyarrow's Flight server decompresses a message as it reads it, and shows no header of it before: 38 kB of zstd
    became 1.2 GiB.  It takes the memory from this pool, and the allocation that is too much fails with the one call.
    What our own code allocates comes from another pool (`allocator.keep_close`).  The variables are taken away again:
    they are not for the server's children.
    """
    given = os.environ.get(POOL)
    bounds = {POOL: "mimalloc", RESERVED: f"{most >> 20}MiB", NO_MORE: "1"}
    if given not in (None, "mimalloc") or any(name in os.environ for name in (RESERVED, NO_MORE)):
        return  # the operator's choice; the server says at its start that there is no bound
    os.environ.update(bounds)
    try:
        import pyarrow as _  # noqa: F401 - it reads them
    finally:
        for name in bounds:
            del os.environ[name]
        if given is not None:
            os.environ[POOL] = given
