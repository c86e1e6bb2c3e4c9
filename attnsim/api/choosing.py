"""From the words of a question to records: which algorithm, whose implementation, under which mask."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from attnsim.models.errors import InputError, nearest, shown
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import (
    check_runs,
    default_implementation,
    find_implementation,
    runs_on,
)
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import ALGORITHMS, MECHANISMS, Algorithm, find_algorithm
from attnsim.models.question.workload import Workload
from attnsim.simulator.prepare import Cache
from attnsim.simulator.replay import LaunchMode, Mode

FEW_QUERIES = 64
"""Most queries of a head that count as decoding: one row tile of the split-KV kernels."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a prediction is made, apart from what and where.

    Parameters
    ----------
    tiles : {"shipped", "retuned", "given"}
    tile : (int, int) or None
        Query rows x keys, for "given".
    mode, cache, launch : str
        As for `attnsim.simulator.replay.replay`.
    """

    tiles: str
    tile: tuple[int, int] | None
    mode: Mode
    cache: Cache
    launch: LaunchMode


def read_conditions(tiles: str, tile: str | tuple[int, int] | None, mode: str, cache: str, launch: str) -> Conditions:
    """Check and collect the conditions.

    Raises
    ------
    InputError
        Naming what was given and what is allowed.
    """
    for name, value, allowed in (
        ("tiles", tiles, ("shipped", "retuned")),
        ("mode", mode, ("fast", "exact")),
        ("cache", cache, ("cold", "warm")),
        ("launch", launch, ("stream", "graph", "kernel")),
    ):
        if value not in allowed:
            raise InputError(f"{name} is {shown(value)}; allowed: {', '.join(allowed)}")
    shape = _shape(tile)
    if shape is not None and tiles == "retuned":
        raise InputError(f"tile {shape[0]}x{shape[1]} is given and tiles are to be retuned; leave one of them out")
    return Conditions(
        "given" if shape else tiles,
        shape,
        cast(Mode, mode),
        cast(Cache, cache),
        cast(LaunchMode, launch),
    )


def _shape(tile: str | tuple[int, int] | None) -> tuple[int, int] | None:
    if tile is None:
        return None
    parts = tile.lower().replace("×", "x").split("x") if isinstance(tile, str) else list(tile)
    try:
        rows, keys = (int(part) for part in parts)
    except (TypeError, ValueError):
        raise InputError(f"tile is {shown(tile)}; write query rows x keys, such as 128x64") from None
    if not (16 <= rows <= 512 and rows % 16 == 0 and 8 <= keys <= 512 and keys % 8 == 0):
        raise InputError(f"tile is {rows}x{keys}; allowed: rows 16 to 512 in steps of 16, keys 8 to 512 in steps of 8")
    return rows, keys


def read_gpu(gpu: Gpu | str) -> Gpu:
    """The GPU itself, or the one with this id or in this file.

    Raises
    ------
    InputError
    """
    if isinstance(gpu, Gpu):
        return gpu
    if not isinstance(gpu, str):
        raise InputError(f"gpu is {shown(gpu)}; give an id such as 'h100-sxm5-80gb', a path or a Gpu")
    return load_gpu(gpu)


def read_algorithm(name: str) -> Algorithm:
    """The record behind an algorithm's name.

    Raises
    ------
    InputError
        Naming the nearest.
    """
    if isinstance(name, str) and name.strip().lower() in MECHANISMS.keys() - ALGORITHMS.keys():
        raise InputError(
            f"algorithm {shown(name)} is a property of the question, not a schedule; ask for a schedule such as flash "
            "with the flags that make it so (attnsim algorithms lists both)"
        )
    if not isinstance(name, str) or name.strip().lower().partition("@")[0] not in ALGORITHMS:
        raise InputError(
            f"algorithm {shown(name)} is not known; {nearest(str(name).lower(), ALGORITHMS)}; "
            f"all: {', '.join(ALGORITHMS)}"
        )
    return find_algorithm(name)


def choose_implementation(algorithm: Algorithm, implementation: str | None, w: Workload, gpu: Gpu) -> Implementation:
    """The implementation to imitate: the one named, or the best available for the GPU.

    Raises
    ------
    InputError
        When it does not run this algorithm, this workload, or on this GPU.
    """
    _check_question(algorithm, w)
    if implementation is None:
        record = _default(algorithm, gpu, w)
    else:
        record = find_implementation(implementation)
        if record.family not in algorithm.families:
            others = [item.name for item in ALGORITHMS.values() if record.family in item.families]
            raise InputError(f"{record.name} does not run algorithm {algorithm.name}; it runs {', '.join(others)}")
    check_runs(record, w, gpu)
    if record.family == "flash-1" and w.mask.is_windowed:
        raise InputError(f"{record.name} has no sliding window; nearest that has: flash_attn_v2")
    return record


def _default(algorithm: Algorithm, gpu: Gpu, w: Workload) -> Implementation:
    record = default_implementation(algorithm.name, gpu, w)
    only_forward = algorithm.name == "split-kv" or w.passes == "decode" or "bwd" in w.directions
    if only_forward and record.name == "flash_attn_v4":
        record = find_implementation("flash_attn_v2")  # the only open kernels with split-KV or a backward played there
    missing_wgmma = record.name == "flash_attn_v3" and not gpu.features.wgmma
    missing_tcgen05 = record.name == "flash_attn_v4" and not gpu.features.tcgen05
    if "flash_attn_v2" in algorithm.implementations and (missing_wgmma or missing_tcgen05):
        second = find_implementation("flash_attn_v2")
        return second if runs_on(second, gpu) else record
    return record


def under_pattern(algorithm: Algorithm, w: Workload) -> Workload:
    """The question under the algorithm's own pattern within its band, where its mask has no patterns already."""
    if not algorithm.mask or not w.mask.is_band:
        return w
    return replace(w, mask=Mask.parse(algorithm.mask) & w.mask)


def _check_question(algorithm: Algorithm, w: Workload) -> None:
    if w.latent is None and algorithm.name == "mla":
        raise InputError("algorithm mla needs a latent: --latent 512x64, or latent=Latent(512, 64)")
    if algorithm.name == "block-list" and w.mask.is_band:
        raise InputError("algorithm block-list needs a list: --mask 'blocks 64 0:0 1:0 1:1', or mask=Mask.blocks(...)")
    if algorithm.name == "sliding-window" and not w.mask.is_windowed:
        raise InputError("algorithm sliding-window needs a window: --window 1024, or mask=Mask.sliding_window(1024)")
    if algorithm.name == "split-kv":
        if w.passes not in ("fwd", "decode"):
            raise InputError(f"algorithm split-kv is for decoding, pass is {w.passes}; allowed: decode, fwd")
        if w.seq_q > FEW_QUERIES:
            raise InputError(
                f"algorithm split-kv is for few queries, seq_q is {w.seq_q}; allowed: 1 to {FEW_QUERIES} "
                "(--pass decode has one)"
            )


def without_latent(w: Workload) -> Workload:
    """The same question with keys and values of every head cached, as multi-head attention has them."""
    return replace(w, latent=None) if w.latent else w


def without_window(w: Workload) -> Workload:
    """The same question without window and patterns in its mask; a window closed on both sides becomes full."""
    if w.mask.is_band and not w.mask.is_windowed:
        return w
    right = w.mask.right if w.mask.right == 0 else None
    return replace(w, mask=Mask(right=right))
