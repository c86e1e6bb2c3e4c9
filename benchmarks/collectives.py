"""Fit the waits of collectives, and say how far off they are on GPUs, architectures and sizes that were held out.

    python benchmarks/collectives.py            # held-out errors by collective, GPU and size
    python benchmarks/collectives.py --write    # and writes waits.csv of attnsim/models/implementations/collectives

Rates and latencies are those of the GPU's file. Every constant is one number for all GPUs.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a clone with nothing installed

from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.collectives.collective import PAIR, WAITS, Collective, Over, over_of, rate_of
from attnsim.models.implementations.collectives.known import COLLECTIVES
from attnsim.validation.measured.sources import PUBLISHED

Array = NDArray[np.float64]
TIMES = PUBLISHED / "collectives" / "times.csv"
FOR_LATENCY = ("tensorrt-llm", 2, 256)
"""Library, GPUs and bytes of the rows that `link.latency` rests on: neither fitted nor checked."""
CLEAN = "aiconfigurator"
"""The source that times a CUDA graph of calls. The others time each call in a stream, where short ones wait for the
host: of an all-reduce they are used from `FROM` bytes on, and fitted where nothing else is."""
FROM = {"nvlink": 1 << 22, "pcie": 1 << 22, "network": 1 << 18}
MODES: dict[str, dict[str, tuple[str, ...]]] = {
    "nvlink": {"ring": ("LL", "LL128", "Simple"), "NVLS": ("",), "direct": ("LL", "Simple")},
    "pcie": {"ring": ("LL", "LL128", "Simple"), "direct": ("LL", "Simple")},
    "network": {"ring": ("Simple",), "tree": ("Simple",), "direct": ("LL", "Simple")},
    "own": {"one-shot": ("",), "two-shot": ("",)},
}
START = {
    "LL": (3.0, 1.0, 2.0, 1.0),
    "LL128": (4.0, 1.0, 1.3, 0.5),
    "Simple": (8.0, 1.5, 1.0, 0.5),
    "": (1.5, 0.5, 1.2, 0.5),
}
LIBRARIES = ("nccl", "vllm", "sglang", "tensorrt-llm")
STARTS = 6
SIZES = {"below 64 KiB": 1 << 16, "below 1 MiB": 1 << 20, "below 16 MiB": 1 << 24}


@dataclass(frozen=True)
class Point:
    """One time."""

    gpu: str
    collective: str
    library: str
    gpus: int
    per_node: int
    source: str
    size: int
    time_s: float

    @property
    def over(self) -> Over:
        """The kind of link."""
        return over_of(load_gpu(self.gpu), self.gpus, self.per_node)


def points() -> Iterator[Point]:
    """Every time that is fitted or checked."""
    with TIMES.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            named = row["gpu"], row["collective"], row["library"], int(row["gpus"]), int(row["per_node"]), row["source"]
            for size in (int(name) for name in row if name.isdigit() and row[name]):
                one = Point(*named, size, float(row[str(size)]) * 1e-6)
                short = one.source != CLEAN and one.collective == "all_reduce" and size < FROM[one.over]
                if (one.library, one.gpus, size) != FOR_LATENCY and not short:
                    yield one


@dataclass(frozen=True)
class Line:
    """A mode of a library, and its constants: base, step, spent, few."""

    algorithm: str
    protocol: str
    constants: tuple[float, float, float, float]

    def times(self, collective: Collective, some: Sequence[Point]) -> Array:
        """Its time of every point."""
        base, step, spent, few = self.constants
        algorithm, found = collective.algorithms[self.algorithm], []
        for one in some:
            gpu = load_gpu(one.gpu)
            wait = (base + step * algorithm.steps(one.gpus)) * gpu.link.latency_s
            over = over_of(gpu, one.gpus, one.per_node)
            rate = rate_of(gpu, over)
            found.append(
                wait + algorithm.sent_over(over, one.gpus, one.per_node) * one.size * (spent + few / one.gpus) / rate
            )
        return np.array(found)


def lines_of(collective: Collective, library: str, over: Over) -> list[Line]:
    """The modes of a library, at where a fit starts."""
    modes = MODES[over if library == "nccl" else "own"]
    return [
        Line(algorithm, protocol, START[protocol])
        for algorithm, protocols in modes.items()
        if algorithm in collective.algorithms
        for protocol in protocols
    ]


def fitted(collective: Collective, start: Sequence[Line], some: Sequence[Point], beside: Sequence[Line]) -> list[Line]:
    """Constants by robust least squares of log time; `beside` are modes of another library that it may choose."""
    ones = np.array([one.gpus for one in some])
    gpus = [load_gpu(one.gpu) for one in some]
    latency = np.array([gpu.link.latency_s for gpu in gpus])
    rate = np.array([rate_of(gpu, over_of(gpu, p.gpus, p.per_node)) for gpu, p in zip(gpus, some, strict=True)])
    size = np.array([one.size for one in some], dtype=float)
    measured = np.log([one.time_s for one in some])
    ways = [collective.algorithms[one.algorithm] for one in start]
    steps = [np.array([way.steps(n) for n in ones]) for way in ways]
    sent = [np.array([way.sent_over(p.over, p.gpus, p.per_node) for p in some]) * size / rate for way in ways]
    barred = [np.array([0 if way.runs(g, n) else np.inf for g, n in zip(gpus, ones, strict=True)]) for way in ways]
    others = [line.times(collective, some) for line in beside]
    origin = np.log([one.constants for one in start]).ravel()

    def off(x: Array) -> Array:
        own = [
            barred[i] + (base + step * steps[i]) * latency + sent[i] * (spent + few / ones)
            for i, (base, step, spent, few) in enumerate(np.exp(x).reshape(len(start), 4))
        ]
        return np.concatenate((np.log(np.min([*own, *others], axis=0)) - measured, 1e-2 * (x - origin)))

    rng, best = np.random.default_rng(0), None
    for number in range(STARTS):
        x = origin + (rng.normal(0, 0.4, origin.size) if number else 0)
        found = least_squares(off, x, loss="soft_l1", f_scale=0.1, max_nfev=80)
        best = found if best is None or found.cost < best.cost else best
    assert best is not None
    values = np.exp(best.x).reshape(len(start), 4)
    return [Line(one.algorithm, one.protocol, tuple(map(float, row))) for one, row in zip(start, values, strict=True)]  # type: ignore[arg-type]


def errors(collective: Collective, lines: Sequence[Line], some: Sequence[Point]) -> Array:
    """Log of predicted over measured."""
    times = np.min([line.times(collective, some) for line in lines], axis=0)
    return np.asarray(np.log(times) - np.log([one.time_s for one in some]))


def octave(one: Point) -> int:
    """The power of two of its size."""
    return one.size.bit_length() - 1


FOLDS: dict[str, Callable[[Point], object]] = {
    "by GPU": lambda one: one.gpu,
    "by architecture": lambda one: load_gpu(one.gpu).architecture,
    "by size": lambda one: octave(one) % 2,
}


def trained(one: Point) -> bool:
    """Whether a point may be fitted: the clean source, and others where that has nothing.

    Over PCIe more than two GPUs share the host's bridges, which nobody describes: one machine is fitted. Between
    servers it is those of one and two GPUs; the larger ones are checked.
    """
    match one.over:
        case "nvlink":
            return one.source == CLEAN or one.collective == "send_receive"
        case "pcie":
            return one.source == CLEAN and (one.gpus == PAIR or one.gpu == "rtx-pro-6000-server")
        case _:
            return one.per_node <= PAIR


class Fits:
    """Every fit once: of a library's collective over a kind of link, without the points of a fold."""

    def __init__(self, every: Sequence[Point]) -> None:
        self.every = every
        self.found: dict[tuple[object, ...], list[Line]] = {}

    def some(self, collective: Collective, library: str, over: Over) -> list[Point]:
        """The points of a library's collective."""
        return [p for p in self.every if (p.collective, p.library, p.over) == (collective.name, library, over)]

    def lines(
        self, collective: Collective, library: str, over: Over, fold: str = "", part: object = None
    ) -> list[Line]:
        """The library's modes, and NCCL's, which it may call, both without what is held out."""
        beside = self.lines(collective, "nccl", over, fold, part) if library != "nccl" else []
        key = collective.name, library, over, fold, part
        if key not in self.found:
            kept = [
                p for p in self.some(collective, library, over) if trained(p) and (not fold or FOLDS[fold](p) != part)
            ]
            self.found[key] = fitted(collective, lines_of(collective, library, over), kept, beside)
        return [*self.found[key], *beside]


def main() -> None:
    fits, table = Fits(list(points())), list[tuple[str, str, str, Line, float]]()
    overs: tuple[Over, ...] = ("nvlink", "pcie", "network")
    for over, collective, library in product(overs, COLLECTIVES.values(), LIBRARIES):
        points_of = fits.some(collective, library, over)
        some, rest = [p for p in points_of if trained(p)], [p for p in points_of if not trained(p)]
        if not some or (library != "nccl" and over != "nvlink"):
            continue
        lines = fits.lines(collective, library, over)
        print(f"\n{collective.name}, {library}, over {over}: {len(some)} times")
        print(f"  fitted: {told(errors(collective, lines, some))}")
        seen = [errors(collective, lines, some)]
        for fold, part_of in FOLDS.items():
            parts = {part_of(p) for p in some}
            if len(parts) < PAIR:
                continue
            held = np.zeros(len(some))
            for part in parts:
                out = [part_of(p) == part for p in some]
                found = fits.lines(collective, library, over, fold, part)
                held[out] = errors(collective, found, [p for p, gone in zip(some, out, strict=True) if gone])
            print(f"  held out {fold}: {told(held)}{by(some, held, fold)}")
            seen.append(held)
        for group in sorted({(p.source, p.gpu, p.gpus, p.per_node) for p in rest}):
            mine = [p for p in rest if (p.source, p.gpu, p.gpus, p.per_node) == group]
            print(f"  never fitted, {' '.join(map(str, group))}: {told(errors(collective, lines, mine))}")
        if rest and over != "nvlink":
            seen.append(np.concatenate((seen[0], errors(collective, lines, rest))))
        width = max(map(spread, seen))
        table += [
            (library, collective.name, over, one, width) for one in fits.found[collective.name, library, over, "", None]
        ]
    if "--write" in sys.argv[1:]:
        write(table)


def told(held: Array) -> str:
    """Mean error, its sign and the 90th percentile, in words."""
    off = np.abs(np.expm1(held))
    median, high = np.expm1(np.median(held)), np.quantile(off, 0.9)
    return f"{100 * off.mean():.1f} % mean, {100 * median:+.1f} % median, p90 {100 * high:.0f} %"


def spread(held: Array) -> float:
    """Half-width that holds nine errors of ten."""
    return float(np.quantile(np.abs(held), 0.9))


def by(some: Sequence[Point], held: Array, name: str) -> str:
    """The mean error of each part."""

    def key(one: Point) -> str:
        if name == "by size":
            return next((name for name, below in SIZES.items() if one.size < below), "16 MiB and more")
        return one.gpu if name == "by GPU" else load_gpu(one.gpu).architecture

    found: dict[str, list[float]] = {}
    for one, off in zip(some, held, strict=True):
        found.setdefault(key(one), []).append(abs(float(np.expm1(off))))
    return "".join(f"; {part} {100 * np.mean(values):.1f}" for part, values in found.items())


def write(table: Sequence[tuple[str, str, str, Line, float]]) -> None:
    """The waits as their file."""
    rows = [",".join(("library,collective,over,algorithm,protocol,base,step,spent,few,half_width",))]
    for library, collective, over, one, width in table:
        cells = (library, collective, over, one.algorithm, f'"{one.protocol}"' if "," in one.protocol else one.protocol)
        rows.append(",".join((*cells, *(f"{value:.3g}" for value in (*one.constants, width)))))
    head = "# Written by benchmarks/collectives.py from attnsim/validation/measurements/published/collectives.\n"
    WAITS.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
