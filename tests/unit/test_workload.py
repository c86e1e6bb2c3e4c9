"""The question: defaults, derived figures, refusals."""

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload


def test_keys_and_values_default_to_the_queries_shape() -> None:
    w = Workload(2, 16, 1024, 64)
    assert (w.heads_kv, w.seq_kv, w.head_dim_v, w.group) == (16, 1024, 64, 1)


def test_grouped_heads() -> None:
    assert Workload(1, 32, 8, 128, heads_kv=8).group == 4
    assert Workload(1, 32, 8, 128, heads_kv=1).group == 32


@pytest.mark.parametrize(
    ("dtype", "element", "output"), [("fp32", 4, 4), ("fp16", 2, 2), ("bf16", 2, 2), ("fp8", 1, 2)]
)
def test_bytes_of_an_element(dtype: str, element: int, output: int) -> None:
    w = Workload(1, 1, 1, 64, dtype=dtype)
    assert (w.element_bytes, w.output_bytes) == (element, output)


@pytest.mark.parametrize(
    ("passes", "directions"),
    [("fwd", ("fwd",)), ("decode", ("fwd",)), ("bwd", ("bwd",)), ("fwd+bwd", ("fwd", "bwd"))],
)
def test_directions(passes: str, directions: tuple[str, ...]) -> None:
    assert Workload(1, 1, 16, 64).with_passes(passes).directions == directions


def test_visible_pairs_are_the_masks() -> None:
    assert Workload(1, 1, 10, 64, mask=Mask.causal()).visible_pairs == 55
    assert Workload(1, 1, 1, 64, seq_kv=10, mask=Mask.causal()).visible_pairs == 10


def test_it_reads_as_a_line() -> None:
    w = Workload(4, 32, 1, 128, 8, 8192, 64, passes="decode", mask=Mask.sliding_window(1024))
    expected = "batch 4, heads 32/8, seq 1 x 8192, head_dim 128/64, bf16, decode, causal window 1024"
    assert str(w) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 0}, "batch is 0; allowed: a whole number from 1"),
        ({"heads_q": -1}, "heads_q is -1"),
        ({"seq_q": 1 << 28}, "seq_q is 268435456"),
        ({"seq_kv": -5}, "seq_kv is -5"),
        ({"head_dim": 2000}, "head_dim is 2000; allowed: a whole number from 1 to 1024"),
        ({"head_dim_v": 2000}, "head_dim_v is 2000"),
        ({"heads_kv": 5}, "heads_kv is 5; it must divide heads_q = 8: one of 1, 2, 4, 8"),
        ({"dtype": "int8"}, "dtype is 'int8'; allowed: fp32, fp16, bf16, fp8"),
        ({"passes": "sideways"}, "pass is 'sideways'; allowed: fwd (prefill), bwd, fwd+bwd (training), decode"),
        ({"batch": True}, "batch is True"),
        ({"seq_q": 10.5}, "seq_q is 10.5"),
    ],
)
def test_what_is_refused(change: dict[str, object], words: str) -> None:
    figures: dict[str, object] = {"batch": 1, "heads_q": 8, "seq_q": 64, "head_dim": 64}
    with pytest.raises(InputError) as caught:
        Workload(**(figures | change))  # type: ignore[arg-type]
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_numbers_of_a_table_are_whole_numbers_too() -> None:
    """A row of a DataFrame holds NumPy's."""
    w = Workload(np.int64(2), np.int32(8), np.uint16(1024), np.int64(64))  # type: ignore[arg-type]
    assert w == Workload(2, 8, 1024, 64) and type(w.seq_kv) is int
    with pytest.raises(InputError, match=r"batch is np\.float64"):
        Workload(np.float64(2), 8, 1024, 64)  # type: ignore[arg-type]


def test_a_mask_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"mask is True; give an attnsim\.Mask, or its text, such as 'causal"):
        Workload(1, 8, 1024, 64, mask=True)  # type: ignore[arg-type]
