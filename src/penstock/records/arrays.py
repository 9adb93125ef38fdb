"""Questions to Arrow's arrays that are answered from their buffers, without a look at single values."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def one_value(array: pa.Array[Any]) -> bool:
    """Whether all values of a text or binary array are the same, and none is null; of no values: False."""
    count = len(array)
    if not count or array.null_count:
        return False
    _, offsets, data = array.buffers()
    ends: npt.NDArray[Any] = np.frombuffer(offsets, "<i4")[array.offset : array.offset + count + 1]  # type: ignore[call-overload]
    start, size = int(ends[0]), int(ends[1] - ends[0])
    if int(ends[-1]) - start != size * count or not (np.diff(ends) == size).all():
        return False
    if not size:
        return True
    values: npt.NDArray[Any] = np.frombuffer(data, np.uint8, size * count, start).reshape(count, size)  # type: ignore[call-overload]
    return bool((values[0] == values[-1]).all()) and bool((values[1:] == values[:-1]).all())
