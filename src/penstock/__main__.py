"""`python -m penstock` is the command `penstock`."""

from __future__ import annotations

import signal


def start() -> None:
    """Run the command line.  Ctrl-C while that is loaded ends the process at once, without a traceback."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell has it ignored
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli.main import main

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()


if __name__ == "__main__":
    start()
