"""Functions that are given the messages of queues: `penstock.App`, and what `penstock worker` runs.

    app = penstock.App("penstock://localhost")

    @app.worker("to-ship", concurrency=8, timeout="5m")
    async def ship(order: Order) -> None: ...

A message is acknowledged when its function returns, and goes back, counted as a failure, when it raises.  Its lease is
extended for as long as the function runs.
"""
