"""Mamba-2's state space duality (arXiv 2405.21060, section 6) as ``mamba_ssm/ops/triton`` runs it, in chunks of 256.

In the family's words C, B and x are Q, K and V: `heads` are those of x, `kv-heads` the groups of B and C, `head_dim`
the width of the state and `head_dim_v` that of a head of x. Five kernels (``ssd_combined.py``,
`_mamba_chunk_scan_combined_fwd`): steps and decays, the chunks' own states, the states handed on, C B^T, and the
outputs; `selective_state_update` decodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation, TileRequest, record
from attnsim.models.implementations.linear.chunks import Chunks, Flow, Work, path_of
from attnsim.models.implementations.linear.gated_delta import peak_bytes, recurring
from attnsim.models.implementations.linear.recurrence import Recurrence
from attnsim.models.implementations.linear.shape import Shape, check_takes
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

CHUNK = 256
TILE = by_hand(64, "rows and columns of a tile: Triton times 32, 64, 128 and 256 both ways")
STEP = by_hand(1024, "numbers of a state that a block of state_passing hands on: Triton times 64 to 2048")
WIDTHS = (64, 128, 256)
FP32 = 4
STEPS, OWN, PASSING, PRODUCTS, SCAN = "chunk_cumsum", "chunk_state", "state_passing", "bmm_chunk", "chunk_scan"


@dataclass(frozen=True, slots=True)
class SsdTile:
    """How the chunks are cut into tiles."""

    def __str__(self) -> str:
        return f"chunks of {CHUNK}, tiles of {TILE} x {TILE}"


def keys_seen() -> int:
    """Keys that a tile of rows reads on average: its own chunk's, up to its last row."""
    return (CHUNK // TILE + 1) * TILE // 2


def parts(s: Shape, gpu: Gpu) -> tuple[Chunks, ...]:
    """The five kernels in launch order."""
    across, down = -(-s.dv // TILE), s.d // TILE
    path = path_of(gpu, TILE, 4)
    steps = (Flow("dt", s.e), Flow("g sums", FP32, written=True), Flow("steps", FP32, written=True))
    own = (
        Flow("V", TILE * s.e, by_heads=down),
        Flow("K", TILE * s.e, by_heads=across * s.group),
        Flow("g sums", FP32, by_columns=True),
        Flow("steps", FP32, by_columns=True),
        Flow("own states", TILE * TILE * FP32, "chunk", written=True),
    )
    passing = (
        Flow("own states", STEP * FP32, "chunk"),
        Flow("g sums", FP32, "chunk", by_columns=True),
        Flow("states", STEP * s.e, "chunk", written=True),
        Flow("state", STEP * FP32, "sequence", written=True),
    )
    tiles = (CHUNK // TILE) ** 2
    rows = TILE * s.d * s.e
    products = (
        Flow("Q", rows, "chunk", by_heads=CHUNK // TILE),
        Flow("K", rows, "chunk", by_heads=CHUNK // TILE),
        Flow("Q K^T", TILE * TILE * FP32, "chunk", written=True),
    )
    keys = keys_seen()
    scan = (
        Flow("Q", s.d * s.e, "row", False, True, s.group),
        Flow("states", s.d * TILE * s.e, "chunk", by_heads=CHUNK // TILE),
        Flow("Q K^T", TILE * keys * FP32, "chunk", False, True, s.group),
        Flow("V", TILE * keys * s.e, "chunk"),
        Flow("g sums", FP32, by_columns=True),
        Flow("steps", keys * FP32, "chunk", by_columns=True),
        Flow("O", TILE * s.e, written=True),
    )
    return (
        Chunks(STEPS, CHUNK, s.heads, steps, Work(exps=CHUNK, fp32=8 * CHUNK, links=8), registers=64),
        Chunks(
            OWN, CHUNK, s.heads, own,
            Work(((TILE, TILE, CHUNK),), exps=CHUNK, fp32=2 * CHUNK * TILE, links=CHUNK // 32),
            columns=across * down, shared_memory_bytes=3 * 32 * 2 * TILE * s.e, path=path,
        ),
        Chunks(
            PASSING, CHUNK, s.heads, passing, Work(exps=1, fp32=STEP, links=1), columns=-(-s.d * s.dv // STEP),
            serial=True, registers=64,
        ),
        Chunks(
            PRODUCTS, CHUNK, s.key_heads, products, Work(((TILE, TILE, s.d),), links=s.d // 32), columns=tiles,
            shared_memory_bytes=3 * 32 * 2 * TILE * s.e, path=path,
        ),
        Chunks(
            SCAN, TILE, s.heads, scan,
            Work(
                ((TILE, TILE, s.d), (TILE, TILE, keys)), exps=TILE + TILE * keys, fp32=4 * TILE * keys,
                links=keys // 32 + 2,
            ),
            columns=across, shared_memory_bytes=2 * TILE * (s.d + TILE) * s.e, path=path,
        ),
    )  # fmt: skip


def _prefill(name: str) -> Implementation:
    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_takes(name, w, WIDTHS)
        s = Shape.of(w)
        kernels = tuple(one.kernel(s.sequences, s.tokens, w.dtype, s.e) for one in parts(s, gpu))
        return Schedule("mamba-2", name, kernels, SsdTile(), peak(w))

    def peak(w: Workload) -> int:
        s = Shape.of(w)
        chunks = s.sequences * s.chunks(CHUNK)
        states = chunks * s.heads * s.d * s.dv * (FP32 + s.e)
        return peak_bytes(w) + states + chunks * s.key_heads * CHUNK**2 * FP32

    return record(name, build, peak_bytes=peak)


RECORDS = (
    _prefill("mamba-ssm.ssd"),
    recurring("mamba-ssm.state-update", "mamba-2", Recurrence(columns=16, warps=4, gates=2, delta=False), WIDTHS),
)
