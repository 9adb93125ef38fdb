"""The product's driver with a hook at the one moment that matters: around the commit of a batch's outputs.

`<folder>/kill-driver` there: die right after the server has committed, before Spark writes its own commit.
`<folder>/kill-server` there: kill the server right before the commit is asked for.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.spark.pipelines.driver import Driver, main
from penstock.spark.pipelines.outputs import Outputs
from penstock.spark.pipelines.pipeline import Pipeline


class KillingOutputs(Outputs):
    def commit(self, query: str, batch: int, stages: Sequence[str]) -> None:
        folder = self.checkpoint.folder.parent
        if (aim := Path(folder, "kill-server")).exists():
            pid = int(aim.read_text())
            aim.unlink()
            os.kill(pid, signal.SIGKILL)
        super().commit(query, batch, stages)
        if (aim := Path(folder, "kill-driver")).exists():
            aim.unlink()
            os.killpg(os.getpgid(0), signal.SIGKILL)


class KillingPipeline(Pipeline):
    outputs_class = KillingOutputs


class KillingDriver(Driver):
    pipeline_class = KillingPipeline


if __name__ == "__main__":
    sys.exit(main(KillingDriver))
