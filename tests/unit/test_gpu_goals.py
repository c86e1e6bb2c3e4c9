"""What our model says of the speed goals of docs/kernels.md."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import gpu_goals


@pytest.mark.parametrize(("gpu", "known"), [(gpu_goals.A100, 1.114), (gpu_goals.H100, None)])
def test_sparse_time_goes_by_visited_tiles_down_to_3_percent_where_rows_are_many(gpu: str, known: float | None) -> None:
    """The goal is 10 %. An A100 misses it at 3 %, with the rate that was fitted for its L2 (docs/kernels.md)."""
    rows = [row for row in gpu_goals.by_visited_tiles(gpu, 128, 65536) if row["density"] > 0.03]
    *others, last = sorted(rows, key=lambda row: -row["density"])
    assert len(others) == 4 and last["density"] < 0.033
    assert all(row["time_a_tile"] < 1.1 for row in others)
    assert last["time_a_tile"] < 1.1 if known is None else last["time_a_tile"] == pytest.approx(known, rel=0.005)


def test_goals_are_predicted_beside_flash_attention_and_a_kernel_that_reads() -> None:
    flash = list(itertools.islice(gpu_goals.beside_flash_attention(), 2))
    assert all(row["kernel"] == "flash" and row["predicted"] > row["goal"] == 1.0 for row in flash)
    decode = next(gpu_goals.beside_reading())
    assert decode["goal"] < decode["predicted"] <= 1.0
