"""Prepares an operation as a call on random inputs, which are made before, so that only the operation is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.device import Array, Device
from attnsim.kernels.sparse import list_blocks
from attnsim.models.implementations.own.linear_tiles import is_causal
from attnsim.models.question.workload import Workload
from attnsim.ptx.counters import encode

DRAWN = 1 << 20
"""Numbers drawn for an array; longer arrays repeat them."""


Random = Callable[[tuple[int, ...], str, int], Array]
"""Makes normal numbers of a shape in fp16 or bf16; the seed distinguishes arrays of one workload."""


class RepeatedNormals:
    """Normal numbers in device memory: drawn once on the CPU, then repeated by copies on the device."""

    def __init__(self, device: Device, seed: int) -> None:
        self._device = device
        self._seed = seed

    def __call__(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        """Make normal numbers of a shape; `seed` distinguishes arrays of one workload."""
        count = int(np.prod(shape))
        drawn = np.random.default_rng((self._seed, seed)).standard_normal(min(count, DRAWN), dtype=np.float32)
        some = self._device.upload(encode(drawn, dtype))
        if some.size == count:
            return some.reshape(shape)
        array = self._device.empty((count,), str(some.dtype))
        array.data.copy_from_device_async(some.data, some.nbytes)
        done = int(some.size)
        while done < count:  # doubling: as many copies as the length has bits
            more = min(done, count - done)
            array[done : done + more].data.copy_from_device_async(array.data, more * array.itemsize)
            done += more
        return array.reshape(shape)


Call = Callable[[], object]


def prepare(one: Operation, device: Device, w: Workload, random: Random) -> Call:
    """Make random inputs on `device`; returns the call that runs the operation on them.

    Parameters
    ----------
    w : Workload
        A workload that the operation supports.
    random : callable
        Makes the inputs in memory that `device` can read.

    Raises
    ------
    InputError
        If the kernels do not support workload or GPU, or memory runs out.
    """
    ready = _SPECIAL.get(one.name, _attention)
    return ready(one, device, w, random)


def inputs(w: Workload, random: Random, keys: int | None = None) -> tuple[Any, Any, Any]:
    """Make Q, K and V of a workload, or of only so many of its keys."""
    kv = (w.batch, w.heads_kv, w.seq_kv if keys is None else keys, w.head_dim)
    shapes = ((w.batch, w.heads_q, w.seq_q, w.head_dim), kv, kv)
    q, k, v = (random(shape, w.dtype, seed) for seed, shape in enumerate(shapes))
    return q, k, v


def _attention(one: Operation, device: Device, w: Workload, random: Random) -> Call:
    q, k, v = inputs(w, random)
    run = one.call()
    return lambda: run(device, q, k, v, mask=w.mask)


def _sparse(one: Operation, device: Device, w: Workload, random: Random) -> Call:
    """Prepare the sparse kernel; the mask's block list is made and uploaded once, as a model would for all layers."""
    q, k, v = inputs(w, random)
    run, listed = one.call(), list_blocks(device, w)
    return lambda: run(device, q, k, v, listed=listed)


def _backward(one: Operation, device: Device, w: Workload, random: Random) -> Call:
    """Prepare the backward kernels; our forward kernel provides O and the log-sum-exp."""
    q, k, v = inputs(w, random)
    o, lse = OPERATIONS["flash"].call()(device, q, k, v, mask=w.mask)
    do = random(tuple(q.shape), w.dtype, 3)
    run = one.call()
    return lambda: run(device, q, k, v, o, lse, do, mask=w.mask)


def _linear(one: Operation, device: Device, w: Workload, random: Random) -> Call:
    q, k, v = inputs(w, random)
    run, causal = one.call(), is_causal(w)
    return lambda: run(device, q, k, v, causal=causal)


def _linear_decode(one: Operation, device: Device, w: Workload, random: Random) -> Call:
    """Prepare linear decode on the new tokens; the state starts at zero and grows with every call."""
    q, k, v = inputs(w, random, keys=w.seq_q)
    state = device.zeros((w.batch, w.heads_kv, w.head_dim, w.head_dim), "float32")
    normalizer = device.zeros((w.batch, w.heads_kv, w.head_dim), "float32")
    run = one.call()
    return lambda: run(device, q, k, v, state, normalizer)


_SPECIAL: dict[str, Callable[[Operation, Device, Workload, Random], Call]] = {
    "sparse": _sparse,
    "flash-backward": _backward,
    "linear": _linear,
    "linear-decode": _linear_decode,
}
