"""One colour for a tensor, a unit and an algorithm, told apart by people who miss a kind of cone, on every page."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from attnsim.models.hardware.units import UNITS
from attnsim.models.mechanisms import ALGORITHMS
from attnsim.plots import styles
from attnsim.plots.styles import STYLES, algorithm_hue, find_style, tensor_hue, unit_hue

Colours = npt.NDArray[np.float64]

SIGHT = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""On linear sRGB: Machado, Oliveira and Fernandes, IEEE TVCG 15(6), 2009, table 1, severity 1.0."""

TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                   [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip
"""sRGB with D65 (IEC 61966-2-1)."""

APART = 22.0
"""CIELAB distance; about 2.3 is just noticeable."""
LEGIBLE = 3.0
"""WCAG 2.1, 1.4.11: contrast of graphical objects."""


def linear(colour: str) -> Colours:
    """Linear sRGB of a colour, named or in hexadecimal."""
    from matplotlib.colors import to_rgb

    value = np.array(to_rgb(colour))
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(colour: str, sight: str = "all cones") -> Colours:
    """CIELAB of a colour as somebody sees it."""
    x, y, z = np.clip(SIGHT[sight] @ linear(colour), 0, 1) @ TO_XYZ.T / TO_XYZ.sum(axis=1)
    a, b, c = (np.cbrt(t) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29 for t in (x, y, z))
    return np.array((116 * b - 16, 500 * (a - b), 200 * (b - c)))


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("style", ["light", "dark", "latex"])
def test_hues_are_told_apart_by_everybody(style: str, sight: str) -> None:
    for one, other in combinations(STYLES[style].colours, 2):
        assert np.linalg.norm(lab(one, sight) - lab(other, sight)) >= APART, (one, other)


def test_greys_of_print_differ_by_lightness_or_by_dashes() -> None:
    style = STYLES["print"]
    for one, other in combinations(range(len(style.colours)), 2):
        if style.colour(one) == style.colour(other):
            assert style.dash(one) != style.dash(other)
        else:
            assert abs(lab(style.colour(one))[0] - lab(style.colour(other))[0]) > 15


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_every_hue_is_legible_on_its_page(style: object) -> None:
    look = find_style(getattr(style, "name", ""))
    assert min(contrast(colour, look.page) for colour in (*look.colours, look.text, look.faint)) >= LEGIBLE


def test_a_tensor_keeps_its_hue_in_copies_parts_and_transposes() -> None:
    hue = styles.TENSORS["K"]
    assert {tensor_hue(name) for name in ("K", "K'", "copy K", "K projected partial", "phi(K)"[4:5])} == {hue}
    assert tensor_hue("O partial") == tensor_hue("O") != tensor_hue("P")
    assert tensor_hue("LSE") is None and tensor_hue("mask") is None and tensor_hue("") is None
    named = [tensor_hue(name) for name in ("Q", "K", "V", "S", "P", "O", "State")]
    assert len(set(named)) == len(named)


def test_every_unit_and_algorithm_has_a_hue() -> None:
    hues = [unit_hue(name) for name in UNITS]
    kin = {"int32": "fp32", "fp64": "fp32", "load_store": "shared_memory"}
    assert None not in hues and len(set(hues)) == len(UNITS) - len(kin)
    assert all(unit_hue(one) == unit_hue(other) for one, other in kin.items())
    assert unit_hue("launch") is None
    assert all(0 <= algorithm_hue(name) < len(STYLES["light"].colours) for name in ALGORITHMS)
    assert styles.FAMILIAR.keys() <= ALGORITHMS.keys() and styles.GROUPS.keys() >= {
        one.group for one in ALGORITHMS.values()
    }
    assert algorithm_hue("performer@64") == algorithm_hue("performer")
    compared = [algorithm_hue(name) for name in ("naive", "flash", "flash-1", "flash-2", "sliding-window", "linear")]
    assert len(set(compared)) == len(compared)
