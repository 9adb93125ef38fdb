"""The Arrow schema of the log: one record batch or more a commit, exactly the types that Spark accepts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

LOG_VERSION = 1
"""Raise it when a column changes its meaning; keep the older reader beside the newer, with real old bytes in tests."""

GROUP_BYTES_MAX = 1 << 30
"""Bytes that a group may have, for it lies in one record batch, whose columns reach 2 GiB; and that a message may."""

TRANSACTION_BYTES_MAX = 64 << 20
"""Bytes of messages and dead letters that a transaction may have: until it ends they are in memory."""

UNCLEAN_GAP = 1 << 32
"""LSNs that a start leaves free after a stop that was none: what was lost may have had some of them."""

SITES_MOST = 1_000
"""Sites that one has met, itself among them: names and numbers are in its log for good, and every link begins with all.
As many more may be named in settings of queues: whoever declares queues keeps no site out.
"""

TIMESTAMP = pa.timestamp("us", tz="UTC")

_FIELDS: list[pa.Field[Any]] = [
    pa.field("lsn", pa.int64()),
    pa.field("kind", pa.int8()),
    pa.field("name", pa.string()),
    pa.field("via", pa.int32()),
    pa.field("route", pa.int32()),
    pa.field("time", TIMESTAMP),
    pa.field("expires_at", TIMESTAMP),
    pa.field("not_before", TIMESTAMP),
    pa.field("priority", pa.int16()),
    pa.field("properties", pa.binary()),
    pa.field("body", pa.binary()),
]

COLUMNS = pa.schema(_FIELDS)
"""Columns of a segment; all nullable as Spark wants them.  Schema metadata is added by `log.segment`."""

CARRIED = pa.schema([one for one in _FIELDS if one.name not in {"kind", "via", "route"}])
"""Columns of messages that one site tells another; `lsn` and `time` are those at the site where each was published."""
