"""FlashMask: tiles that two intervals of rows a key leave, and what cannot be said so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnsim.api import predict
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload

H100, RECORD = load_gpu("h100-sxm5-80gb"), IMPLEMENTATIONS["paddle.flash-mask"]
LONG = Workload(1, 8, 4096, 128, dtype="bf16", mask=Mask.causal())


def test_documents_are_skipped_by_tiles_and_causal_masks_have_one_vector() -> None:
    whole, halves = LONG, replace(LONG, mask=Mask.parse("causal, document 2048 2048"))
    both = replace(LONG, mask=Mask.parse("document 2048 2048"))
    causal, parted, square = (RECORD.build(w, H100, None) for w in (whole, halves, both))
    assert [len(one.kernels) for one in (causal, parted, square)] == [3, 3, 4]
    tiles = 4096 // 128
    flops = 8 * 4 * 128 * 128 * 128
    assert causal.total("flops") == flops * tiles * (tiles + 1) // 2
    assert parted.total("flops") == flops * 2 * (tiles // 2) * (tiles // 2 + 1) // 2
    assert square.total("flops") == flops * tiles * tiles // 2
    bounds = square.requested()["flashmask_fwd", "load", "row bounds"]
    assert bounds == 8 * tiles * tiles // 2 * 128 * 2 * 4


def test_a_prefix_costs_what_is_added_above_the_diagonal() -> None:
    times = [
        predict(replace(LONG, mask=Mask.parse(text)), H100, "sparse", implementation=RECORD.name, baseline=False).time_s
        or 0
        for text in ("causal", "prefix 1024", "full")
    ]
    assert 0 < times[0] < times[1] < times[2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mask": Mask.parse("causal, random 10 % x64")}, "one interval of rows below"),
        ({"mask": Mask.parse("causal, document 2048 2048, prefix 100")}, "one interval of rows below"),
        ({"head_dim": 64, "head_dim_v": 64}, "visits are not counted"),
        ({"passes": "bwd"}, "bwd"),
        ({"dtype": "fp8"}, "fp8"),
    ],
)
def test_what_cannot_be_said_is_refused_in_a_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        predict(replace(LONG, **changes), H100, "sparse", implementation=RECORD.name, baseline=False)
    assert said in str(error.value) and "\n" not in str(error.value)
