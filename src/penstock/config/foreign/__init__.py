"""Settings files of others: AMPS, Artemis, RabbitMQ.  One reader a format, one result, one writer.

`read_foreign` gives our settings as a mapping, the place of each value in the file it came from, and remarks on what is
different here, comes later, or has no meaning here.  Knows no settings model: `config.load` judges what comes out.
"""

from penstock.config.foreign.choose import is_foreign, read_foreign
from penstock.config.foreign.converted import Converted, Remark, Verdict
from penstock.config.foreign.document import read_bytes

__all__ = ["Converted", "Remark", "Verdict", "is_foreign", "read_bytes", "read_foreign"]
