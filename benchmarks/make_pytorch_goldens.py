"""Write what PyTorch's `scaled_dot_product_attention` gives in float64 on the CPU, to hold the references against.

`python benchmarks/make_pytorch_goldens.py` needs PyTorch, which attnsim does not: install it into an environment of its
own (`pip install torch numpy`) and run this there with PYTHONPATH set to the repository. The result,
tests/golden/pytorch_sdpa.npz, is committed; tests/unit/test_pytorch_goldens.py reads it without PyTorch.

Inputs come from seeds, so only outputs are stored, with a checksum of the inputs. Masks are given to PyTorch the way
its users give them: `is_causal`, a boolean matrix, a float matrix of 0 and -inf. `is_causal` is aligned top-left, ours
bottom-right, so that it is used where both lengths are equal only.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnsim.models.mask.mask import Mask
from attnsim.models.references.softmax import visible

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden" / "pytorch_sdpa.npz"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """One call: shape, mask and how PyTorch is told of it."""

    name: str
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    head_dim: int
    head_dim_v: int
    mask: Mask = Mask.full()  # noqa: RUF009 frozen
    told: Literal["nothing", "is_causal", "bool", "float"] = "nothing"
    scale: float | None = None
    size: float = 1.0

    def inputs(self, seed: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Q, K, V and dO, ``[batch, heads, seq, head_dim]``."""
        draw = np.random.default_rng(seed).standard_normal
        return (
            draw((self.batch, self.heads_q, self.seq_q, self.head_dim)) * self.size,
            draw((self.batch, self.heads_kv, self.seq_kv, self.head_dim)),
            draw((self.batch, self.heads_kv, self.seq_kv, self.head_dim_v)),
            draw((self.batch, self.heads_q, self.seq_q, self.head_dim_v)),
        )


CASES = (
    Case("full", 2, 2, 2, 24, 24, 8, 8),
    Case("causal", 1, 4, 4, 29, 29, 8, 8, Mask.causal(), "is_causal"),
    Case("gqa_causal", 1, 6, 2, 21, 21, 8, 8, Mask.causal(), "is_causal"),
    Case("mqa_cross", 1, 4, 1, 17, 31, 8, 8),
    Case("gqa_chunk", 1, 4, 2, 13, 37, 8, 8, Mask.causal(), "bool"),
    Case("decode", 2, 4, 2, 1, 40, 8, 8),
    Case("window_bool", 1, 2, 2, 33, 33, 8, 8, Mask.sliding_window(7), "bool"),
    Case("window_float", 1, 2, 2, 33, 33, 8, 8, Mask.sliding_window(5, causal=False), "float"),
    Case("rows_without_keys", 1, 2, 2, 25, 12, 8, 8, Mask.causal(), "bool"),
    Case("patterns", 1, 2, 1, 30, 30, 8, 8, Mask.longformer(6, 2), "float"),
    Case("narrow_v_own_scale", 1, 3, 1, 19, 23, 12, 5, scale=0.5),
    Case("scores_of_ten_thousand", 1, 2, 2, 20, 20, 8, 8, Mask.causal(), "is_causal", size=1e4),
)


def golden(case: Case, seed: int) -> dict[str, Floats]:
    """O, dQ, dK and dV of one case by PyTorch's math backend, and the sum of the inputs."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v, do = case.inputs(seed)
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (q, k, v)]
    told: dict[str, Any] = {"is_causal": case.told == "is_causal"}
    if case.told in ("bool", "float"):
        seen = torch.tensor(visible(case.mask, case.seq_q, case.seq_kv))
        hidden = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)
        told["attn_mask"] = seen if case.told == "bool" else hidden
    with sdpa_kernel(SDPBackend.MATH):
        o = torch.nn.functional.scaled_dot_product_attention(
            *leaves, **told, scale=case.scale, enable_gqa=case.heads_q != case.heads_kv
        )
    o.backward(torch.tensor(do))
    found = {"o": o.detach(), **{f"d{name}": x.grad for name, x in zip("qkv", leaves, strict=True)}}
    out = {name: value.numpy() for name, value in found.items() if value is not None}
    return out | {"inputs": np.array(sum(float(x.sum()) for x in (q, k, v, do)))}


def main() -> int:
    import torch

    made = {
        f"{case.name}/{name}": value for seed, case in enumerate(CASES) for name, value in golden(case, seed).items()
    }
    GOLDEN.parent.mkdir(exist_ok=True)
    temporary = GOLDEN.with_suffix(".tmp.npz")
    np.savez_compressed(temporary, torch_version=np.array(torch.__version__), **made)
    temporary.replace(GOLDEN)
    print(f"{GOLDEN.name}: {len(CASES)} cases, {GOLDEN.stat().st_size:,} bytes, PyTorch {torch.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
