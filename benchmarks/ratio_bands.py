"""How many lines of the table of ratios can lie between 85 and 95 %: what a range that is right would show.

`python benchmarks/ratio_bands.py` (some minutes) counts the lines of today, each with its pair of GPUs left out, and
then draws errors for the same steps by the stated ranges: normal ones, of which a kernel's pass shares on a pair of
GPUs what its measured steps share. Errors that share much hold all of a line or little of it, however right the range.
At last it counts the lines of ranges with other components, each with a physical reason; none was chosen by its count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attnsim.models.calibrations.components import NORMAL_90
from attnsim.validation.checking.components import Group, left_out
from attnsim.validation.checking.ratio_steps import Step, groups_of_steps, steps

BAND = (0.85, 0.95)
DRAWS = 3000
NAMES = ("machines", "change", "architectures", "borrowed")
GENERATIONS = {8: 0, 9: 1, 10: 2, 12: 2}
"""By the number before the point of a compute capability: Ampere and Ada, Hopper, Blackwell."""
HOST_S = 5e-6
"""Of a call of which the host takes about as much on any machine."""


def _generations(step: Step, group: Group) -> Group:
    """Every generation between two GPUs counts as one more architecture."""
    older, newer = (GENERATIONS[row.gpu.compute_capability_number // 10] for row in (step.older, step.newer))
    return replace(group, sizes={**group.sizes, "architectures": math.sqrt(max(1, newer - older))})


def _host(step: Step, group: Group) -> Group:
    """The host's part of the shorter call."""
    size = HOST_S / min(step.older.measured_s, step.newer.measured_s)
    return replace(group, carried=(*group.carried, "added"), sizes={**group.sizes, "added": size})


def _decode(step: Step, group: Group) -> Group:
    """Calls that a memory bounds alone."""
    return replace(group, carried=(*group.carried, "added")) if step.newer.case.passes == "decode" else group


def _carried(step: Step, group: Group) -> Group:
    """Numbers that were carried to another architecture."""
    apart = step.older.gpu.architecture != step.newer.gpu.architecture
    return replace(group, carried=(*group.carried, "added")) if apart and step.way == "carried" else group


OTHERS: dict[str, Callable[[Step, Group], Group]] = {
    "generations": _generations, "host": _host, "decode": _decode, "carried across architectures": _carried,
}  # fmt: skip


def main() -> None:
    """Print the counts."""
    found = steps()
    groups = groups_of_steps(found)
    check = left_out(groups, lambda group: group.laboratory, NAMES)
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
    for name, made in OTHERS.items():
        other = [made(one, group) for one, group in zip(found, groups, strict=True)]
        names = (*NAMES, "added") if any("added" in group.carried for group in other) else NAMES
        seen = left_out(other, lambda group: group.laboratory, names).inside
        inside = np.array([seen[group] for group in other])
        held = [float(inside[_places(line)].mean()) for line in lines.values()]
        print(
            f"with {name}: {_within(held)} lines in {BAND}, {sum(share >= BAND[0] for share in held)} above its low end"
        )


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
