"""`penstock` with few descriptors and bounded memory: the limits are `LIMITED_FILES` and `LIMITED_MEMORY`, in MiB."""

from __future__ import annotations

import os
import resource

from penstock.cli.main import main

if __name__ == "__main__":
    files, memory = int(os.environ["LIMITED_FILES"]), int(os.environ["LIMITED_MEMORY"]) << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    main()
