"""How many lines of the table of ratios can lie between 85 and 95 %: what a range that is right would show.

`python benchmarks/ratio_bands.py` (some minutes) counts the lines of today, each with its pair of GPUs left out, and
then draws errors for the same steps by the stated ranges: normal ones, of which a kernel's pass shares on a pair of
GPUs what its measured steps share. Errors that share much hold all of a line or little of it, however right the range.
"""

from __future__ import annotations

import numpy as np

from attnsim.models.calibrations.components import NORMAL_90
from attnsim.validation.checking.components import left_out
from attnsim.validation.checking.ratio_steps import groups_of_steps, steps

BAND = (0.85, 0.95)
DRAWS = 3000


def main() -> None:
    """Print the counts."""
    found = steps()
    groups = groups_of_steps(found)
    check = left_out(groups, lambda group: group.laboratory, ("machines", "change", "architectures", "borrowed"))
    lines: dict[tuple[str, str], dict[str, list[int]]] = {}
    for place, (one, group) in enumerate(zip(found, groups, strict=True)):
        lines.setdefault((one.pair, one.way), {}).setdefault(group.source, []).append(place)
    half = np.array([check.half[group] for group in groups])
    inside = np.array([check.inside[group] for group in groups])
    errors = np.array([one.log_error for one in found])
    held = [float(inside[_places(line)].mean()) for line in lines.values()]
    print(f"{len(found)} steps, {inside.mean():.3f} of them inside; {len(lines)} lines, {_within(held)} in {BAND}")
    random = np.random.default_rng(0)
    for shared in (True, False):
        counts = []
        for _ in range(DRAWS):
            drawn = np.concatenate([_drawn(random, half[some], errors[some], shared) for some in _sources(lines)])
            places = np.concatenate(_sources(lines))
            good = np.empty(len(found))
            good[places] = np.abs(drawn) <= half[places]
            counts.append(_within([float(good[_places(line)].mean()) for line in lines.values()]))
        low, high = np.quantile(counts, (0.05, 0.95))
        what = "errors shared as measured" if shared else "every step by itself"
        print(f"a range that is right, {what}: {np.mean(counts):.1f} lines ({low:.0f} to {high:.0f})")


def _sources(lines: dict[tuple[str, str], dict[str, list[int]]]) -> list[list[int]]:
    return [places for line in lines.values() for places in line.values()]


def _places(line: dict[str, list[int]]) -> list[int]:
    return [place for places in line.values() for place in places]


def _within(shares: list[float]) -> int:
    return sum(BAND[0] <= share <= BAND[1] for share in shares)


def _drawn(random: np.random.Generator, half: np.ndarray, errors: np.ndarray, shared: bool) -> np.ndarray:
    """Errors of a source's steps whose standard deviations are the stated ones."""
    sd = half / NORMAL_90
    own = sd
    if shared and len(errors) > 1:
        own = np.minimum(errors.std(ddof=1), 0.95 * sd)
    return random.normal() * np.sqrt(sd**2 - own**2) + random.normal(size=len(sd)) * own


if __name__ == "__main__":
    main()
