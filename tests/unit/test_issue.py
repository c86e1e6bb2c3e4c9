"""The schedulers of an SM: a counted operation takes its busiest pipe, and all counted operations share issue slots."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Launch
from attnsim.simulator.engine import play
from attnsim.simulator.program import compile_kernel
from tests.unit.test_engine import MMA, PAPER, kernel, played

COUNTED = TileOp("vector", "P", scores=100, exps=100, fp32=440, int32=50, load_stores=30, issues=40)


@pytest.mark.parametrize(
    ("more", "busy"),
    [({}, 440), ({"exps": 500}, 500), ({"int32": 700}, 700), ({"load_stores": 800}, 800), ({"issues": 900}, 900)],
    ids=["FP32", "exp", "integer", "load/store", "issue"],
)
def test_a_counted_operation_takes_as_long_as_its_busiest_pipe(more: dict[str, Any], busy: int) -> None:
    assert played(kernel(COUNTED._replace(**more))).time == busy


def test_without_counts_pipes_are_added() -> None:
    assert played(kernel(COUNTED._replace(issues=0))).time == 100 + 440 + 50 + 30
    assert played(kernel(COUNTED._replace(issues=0)), costs=replace(PAPER, int32=3.0)).time == 100 + 440 + 3 * 50 + 30


@pytest.mark.parametrize(("issues", "time"), [(0, 1000), (400, 1000), (600, 1200)])
def test_two_blocks_of_one_sm_share_issue_slots(issues: int, time: int) -> None:
    """One multiplies for 1,000 ps under the other's softmax; together they issue no more than there are slots."""
    product, softmax = MMA._replace(issues=issues), TileOp("vector", "P", fp32=900, issues=issues and 600)
    work = replace(
        kernel(),
        segments=(Segment("product", (product,)), Segment("softmax", (softmax,))),
        repeats=np.array([[[1, 0]], [[0, 1]]]),
        launches=(Launch(np.array([0, 1])),),
    )
    program = compile_kernel(work, PAPER, {})
    assert play(program, 1, 2, iter([program.block(work.runs(n)) for n in (0, 1)])).time == time
