"""Mamba-2's state space duality (arXiv 2405.21060, section 6) as ``mamba_ssm/ops/triton`` runs it, in chunks of 256.

In the family's words C, B and x are Q, K and V: `heads` are those of x, `kv-heads` the groups of B and C, `head_dim`
the width of the state and `head_dim_v` that of a head of x. Five kernels (``ssd_combined.py``,
`_mamba_chunk_scan_combined_fwd`): steps and decays, the chunks' own states, the states handed on, C B^T, and the
outputs; `selective_state_update` decodes.
"""

from __future__ import annotations

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.linear.chunks import Chunks, Shape, Work, path_of
from attnsim.models.implementations.linear.gated_delta import peak_bytes, prefill, recurring
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Tensor, along

CHUNK = 256
TILE = by_hand(64, "rows and columns of a tile: Triton times 32, 64, 128 and 256 both ways")
STEP = by_hand(1024, "numbers of a state that a block of state_passing hands on: Triton times 64 to 2048")
FP32 = 4
STEPS, OWN, PASSING, PRODUCTS, SCAN = "chunk_cumsum", "chunk_state", "state_passing", "bmm_chunk", "chunk_scan"


def keys_seen() -> int:
    """Keys that a tile of rows reads on average: its own chunk's, up to its last row."""
    return (CHUNK // TILE + 1) * TILE // 2


def parts(s: Shape, gpu: Gpu) -> tuple[Chunks, ...]:
    """The five kernels in launch order."""
    across, down = -(-s.dv // TILE), s.d // TILE
    path = path_of(gpu, TILE, 4)
    steps = (
        Tensor("dt", "b h g c x", s.e),
        *along("b h g c x", {"g sums": FP32, "steps": FP32}, written=True),
    )
    own = (
        Tensor("V", "b h g c m", TILE * s.e),
        Tensor("K", "b h c n", TILE * s.e),
        *along("b h g c", {"g sums": FP32, "steps": FP32}),
        Tensor("own states", "b h g c m n", TILE * TILE * FP32, written=True, by_tile=True),
    )
    passing = (
        Tensor("own states", "b h g c x", STEP * FP32, by_tile=True),
        Tensor("g sums", "b h g c", FP32, by_tile=True),
        Tensor("states", "b h g c x", STEP * s.e, written=True, by_tile=True),
        Tensor("state", "b h g x", STEP * FP32, written=True),
    )
    rows = TILE * s.d * s.e
    products = (
        Tensor("Q", "b h c m", rows, by_tile=True),
        Tensor("K", "b h c n", rows, by_tile=True),
        Tensor("Q K^T", "b h c m n", TILE * TILE * FP32, written=True, by_tile=True),
    )
    keys = keys_seen()
    scan = (
        Tensor("Q", "b h c", s.d * s.e),
        Tensor("states", "b h g C x", s.d * TILE * s.e, by_tile=True),
        Tensor("Q K^T", "b h c", TILE * keys * FP32, by_tile=True),
        Tensor("V", "b h g c x", TILE * keys * s.e, by_tile=True),
        Tensor("g sums", "b h g c", FP32),
        Tensor("steps", "b h g c", keys * FP32, by_tile=True),
        Tensor("O", "b h g c x", TILE * s.e, written=True),
    )
    return (
        Chunks(STEPS, CHUNK, s.groups, steps, Work(exps=CHUNK, fp32=8 * CHUNK, links=8), registers=64),
        Chunks(
            OWN, CHUNK, s.groups, own,
            Work(((TILE, TILE, CHUNK),), exps=CHUNK, fp32=2 * CHUNK * TILE, links=CHUNK // 32),
            columns={"m": across, "n": down}, shared_memory_bytes=3 * 32 * 2 * TILE * s.e, path=path,
        ),
        Chunks(
            PASSING, CHUNK, s.groups, passing, Work(exps=1, fp32=STEP, links=1), columns=-(-s.d * s.dv // STEP),
            serial=True, registers=64,
        ),
        Chunks(
            PRODUCTS, CHUNK, (s.key_heads, 1), products, Work(((TILE, TILE, s.d),), links=s.d // 32),
            columns={"m": CHUNK // TILE, "n": CHUNK // TILE},
            shared_memory_bytes=3 * 32 * 2 * TILE * s.e, path=path,
        ),
        Chunks(
            SCAN, TILE, s.groups, scan,
            Work(
                ((TILE, TILE, s.d), (TILE, TILE, keys)), exps=TILE + TILE * keys, fp32=4 * TILE * keys,
                links=keys // 32 + 2,
            ),
            columns=across, shared_memory_bytes=2 * TILE * (s.d + TILE) * s.e, path=path, row_tiles=CHUNK // TILE,
        ),
    )  # fmt: skip


def _chunked_bytes(w: Workload) -> int:
    s = Shape.of(w)
    chunks = s.sequences * s.chunks(CHUNK)
    states = chunks * s.heads * s.d * s.dv * (FP32 + s.e)
    return peak_bytes(w) + states + chunks * s.key_heads * CHUNK**2 * FP32


RECORDS = (
    prefill("mamba-ssm.ssd", f"chunks of {CHUNK}, tiles of {TILE} x {TILE}", parts, _chunked_bytes),
    recurring("mamba-ssm.state-update"),
)
