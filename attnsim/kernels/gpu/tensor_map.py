"""Descriptors of the tensor copy engine, made by the driver (``cuTensorMapEncodeTiled``, CUDA Driver API)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.errors import InputError

DATA_TYPE = {"float16": 6, "uint16": 9}
"""CU_TENSOR_MAP_DATA_TYPE_FLOAT16 and _BFLOAT16."""
SWIZZLE_128B = 3
PROMOTE_L2_256B = 3
COLUMNS = 64
"""Width of a box: 128 bytes, the span of the swizzle."""
MAP_BYTES, MAP_ALIGNMENT = 128, 64


def tensor_map(array: Any, rows: int) -> NDArray[Any]:
    """Return the tensor map of ``[batch, heads, seq, head_dim]`` for boxes of `rows` x 64 elements of one head.

    Rows past the end of a head arrive as zeros.

    Parameters
    ----------
    array : cupy.ndarray
        16-bit, C-contiguous.
    rows : int
        At most 256.

    Returns
    -------
    ndarray of 128 bytes, shape ``[1]``
        Passed by value as a kernel argument.

    Raises
    ------
    InputError
        If the driver has no such call, or rejects the shape.
    """
    batch, heads, seq, width = array.shape
    storage = np.zeros(MAP_BYTES + MAP_ALIGNMENT, np.uint8)
    offset = -storage.ctypes.data % MAP_ALIGNMENT
    encoded = storage[offset : offset + MAP_BYTES].view(np.dtype((np.void, MAP_BYTES)))
    dims = (ctypes.c_uint64 * 3)(width, seq, batch * heads)
    strides = (ctypes.c_uint64 * 2)(width * 2, seq * width * 2)
    box = (ctypes.c_uint32 * 3)(COLUMNS, rows, 1)
    steps = (ctypes.c_uint32 * 3)(1, 1, 1)
    status = _encoder()(
        ctypes.c_void_p(encoded.ctypes.data),
        DATA_TYPE[str(array.dtype)],
        3,
        ctypes.c_void_p(int(array.data.ptr)),
        dims,
        strides,
        box,
        steps,
        0,  # not interleaved
        SWIZZLE_128B,
        PROMOTE_L2_256B,
        0,  # out of bounds: zeros
    )
    if status != 0:
        raise InputError(f"the driver refuses a tensor map of shape {list(array.shape)}, {rows} rows a box: {status}")
    return encoded


def _encoder() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError):
        raise InputError(
            "the driver has no tensor maps; flash_hopper needs CUDA 12 or newer and a Hopper GPU"
        ) from None
