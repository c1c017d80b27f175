"""How columns lie in the database: keys as compressed differences, sums as compressed whole numbers."""

import zlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint32]
Whole = NDArray[np.int64]


def ids_packed(ids: Ids) -> bytes:
    """Keys of a few thousand GPUs in a row take a hundred bytes."""
    return zlib.compress(np.diff(ids.astype(np.uint32), prepend=np.uint32(0)).astype("<u4").tobytes(), 1)


def ids_read(packed: bytes | memoryview) -> Ids:
    """The array is shared and can't be written to: one minute after another has the same keys."""
    return _ids_read(bytes(packed))


@lru_cache(maxsize=512)
def _ids_read(packed: bytes) -> Ids:
    ids = np.cumsum(np.frombuffer(zlib.decompress(packed), "<u4"), dtype=np.uint32)
    ids.flags.writeable = False
    return ids


def sums_packed(*columns: Whole) -> bytes:
    """Columns of the same length, none negative, one behind the other."""
    return zlib.compress(np.concatenate(columns).astype("<u8").tobytes(), 1)


def sums_read(packed: bytes | memoryview, columns: int) -> Whole:
    """The columns as rows of a matrix."""
    return np.frombuffer(zlib.decompress(bytes(packed)), "<u8").astype(np.int64).reshape(columns, -1)
