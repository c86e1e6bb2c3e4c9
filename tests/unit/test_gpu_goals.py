"""What our model says of the speed goals of docs/kernels.md."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import gpu_goals


@pytest.mark.parametrize("gpu", [gpu_goals.A100, gpu_goals.H100])
def test_sparse_time_goes_by_visited_tiles_down_to_3_percent_where_rows_are_many(gpu: str) -> None:
    """The goal is 10 %."""
    rows = [row for row in gpu_goals.by_visited_tiles(gpu, 128, 65536) if row["density"] > 0.03]
    assert len(rows) == 5 and min(row["density"] for row in rows) < 0.033
    assert all(row["time_a_tile"] < 1.1 for row in rows)


def test_goals_are_predicted_beside_flash_attention_and_a_kernel_that_reads() -> None:
    flash = list(itertools.islice(gpu_goals.beside_flash_attention(), 2))
    assert all(row["kernel"] == "flash" and row["predicted"] > row["goal"] == 1.0 for row in flash)
    decode = next(gpu_goals.beside_reading())
    assert decode["goal"] < decode["predicted"] <= 1.0
