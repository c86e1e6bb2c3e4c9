"""What an address says, and what of it is refused."""

import pytest

import attnsim
from attnsim.errors import InputError
from attnsim.explore.state import DEFAULTS, FIGURES, KEYS, State, read_state
from attnsim.studies.folder import calibration


def test_an_empty_state_is_the_page_as_it_begins() -> None:
    state = read_state({})
    assert state.gpu is state.base and state.base.id == "h100-sxm5-80gb" and not state.stale
    assert (state.question.heads_q, state.question.heads_kv, state.question.seq_q) == (8, 1, 8192)
    assert str(state.question.mask) == "causal" and state.algorithm == "flash"


def test_the_architects_gpu() -> None:
    state = read_state({"l2": "2x", "exp": "1.5x", "hbm": "6TB/s", "tensor": "1.25x", "dtype": "fp16"})
    assert {one.key: one.new for one in state.gpu.changes} == {
        "hbm.bandwidth": 6e12, "l2.bandwidth": 19.4e12, "tensor.fp16": 5120.0, "sm.exp_rate": 24.0,
    }  # fmt: skip
    assert state.unturned.gpu is state.base and state.machines == [state.base, state.gpu]


def test_a_figure_of_once_its_value_turns_nothing() -> None:
    state = read_state(dict.fromkeys(FIGURES, "1x"))
    assert state.gpu == state.base and state.machines == [state.base]


def test_a_shape_of_ones_own_takes_the_place_of_the_model() -> None:
    state = read_state({"heads": 16, "head_dim": 64, "seq": "4k", "causal": True})
    assert "model" not in state.texts and (state.question.heads_q, state.question.seq_q) == (16, 4096)
    assert "seq" not in read_state({"lengths": "1:4096 x 3"}).texts


@pytest.mark.parametrize(
    ("given", "mask", "algorithm"),
    [
        ({"density": "0.1"}, "causal, random 10 % x64 seed 0", "sparse"),
        ({"density": "0.1", "mask": "full"}, "random 10 % x64 seed 0", "sparse"),
        ({"density": "1"}, "causal", "flash"),
        ({"mask": "causal, window 512"}, "causal window 512", "sliding-window"),
        ({"window": "512", "causal": "true"}, "causal window 512", "sliding-window"),
        ({"model": "deepseek-v3", "pass": "decode"}, "causal", "mla"),
        ({"kernel": "torch.eager"}, "causal", "naive"),
        ({"algorithm": "linear"}, "causal", "linear"),
    ],
)
def test_the_mask_and_who_plays_it(given: dict[str, str], mask: str, algorithm: str) -> None:
    state = read_state(given)
    assert (str(state.question.mask), state.algorithm) == (mask, algorithm)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "state is []"),
        ({"colour": "red"}, "'colour' is no key of a state; nearest: "),
        ({"seq": [1]}, "seq is [1]; give text or a number"),
        ({"seq": None}, "seq is None; give text or a number"),
        ({"mask": "x" * 5_000}, "allowed: at most 2,000 letters"),
        ({"mask": "a\nb"}, "on one line"),
        ({"gpu": "/etc/mine.yaml"}, "gpu is '/etc/mine.yaml', a file; the page reads none"),
        ({"model": "../config.JSON"}, "a file; the page reads none"),
        ({"model": "/etc/mine.yaml/"}, "a file; the page reads none"),
        ({"model": "/etc/mine.yaml/."}, "a file; the page reads none"),
        ({"model": "/etc/config.json /x/.."}, "a file; the page reads none"),
        ({"lengths": "lengths.csv "}, "a file; the page reads none"),
    ],
)
def test_what_is_no_state_is_refused(given: object, told: str) -> None:
    with pytest.raises(InputError) as refused:
        read_state(given)
    assert told in str(refused.value)


@pytest.mark.parametrize("density", ["0", "-0.5", "1.5", "nan", "inf", "half"])
def test_a_density_is_above_0_and_up_to_1(density: str) -> None:
    with pytest.raises(InputError, match="allowed: above 0 and up to 1"):
        _ = read_state({"density": density}).mask


def test_an_address_of_another_version_says_so() -> None:
    now = {"v": attnsim.__version__, "cal": calibration()}
    assert read_state(now).stale == ""
    assert read_state({"v": "0.0.1"}).stale == (
        f"This address was made with version 0.0.1; the numbers here are of version {attnsim.__version__}."
    )
    other = read_state(now | {"cal": "0123456789ab"}).stale
    assert other == (
        f"This address was made with calibration 0123456789ab; the numbers here are of calibration {calibration()}."
    )


def test_a_state_is_the_same_in_whatever_order_it_is_given() -> None:
    given = {"seq": "1024", "l2": "2x", "gpu": "l4", "mask": ""}
    assert read_state(given) == read_state(dict(reversed(given.items()))) == State(
        (("gpu", "l4"), ("l2", "2x"), ("seq", "1024"))
    )  # fmt: skip
    assert set(DEFAULTS) < set(KEYS)
