"""A study: axes, the combination of their values to points, and the method that answers points."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnsim.api.adapting.own import OwnTimings
from attnsim.arrays import Floats, Ints
from attnsim.errors import InputError
from attnsim.models.schedule.instructions import LiftedCall
from attnsim.models.schedule.kernel_file import digest_of
from attnsim.studies.axes import Axis, Values

Combine = Literal["cartesian", "list", "sobol"]
Method = Literal["closed-form", "replay", "auto"]

MOST_POINTS = 10**9
CLOSED_CHUNK, REPLAYED_CHUNK = 1 << 16, 1 << 7
"""Points of a chunk, about one second of closed forms or replays: the loss if a run is interrupted."""
MOST_DIMENSIONS = 21_201
"""Largest dimension of SciPy's Sobol sequence (Joe and Kuo's direction numbers)."""
NEEDED = ("batch", "heads_q", "head_dim")


@dataclass(frozen=True, slots=True)
class Column:
    """Values of one axis at some points: ``values[codes]``."""

    axis: Axis
    values: Values
    codes: Ints

    def array(self) -> NDArray[Any]:
        """Return one number per point."""
        return np.asarray(self.values)[self.codes]


@dataclass(frozen=True, slots=True)
class Points:
    """Some points of a study, as columns.

    Parameters
    ----------
    first : int
        Number of the first point in the study.
    """

    first: int
    count: int
    columns: dict[str, Column]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The unit of work of one process.

    Parameters
    ----------
    first, stop : int
        Its range of points, `stop` excluded.
    replays : int or None
        Largest number of replays.
    """

    number: int
    first: int
    stop: int
    replays: int | None

    @property
    def count(self) -> int:
        """Number of its points."""
        return self.stop - self.first


@dataclass(frozen=True)
class Study:
    """Axes over GPUs, figures, algorithms and workloads (or kernel files), and the method that answers their points.

    Parameters
    ----------
    axes : tuple of Axis
        The slowest-varying axis first.
    combine : {"cartesian", "list", "sobol"}
        Every combination; the first values, then the second values, ... (axes of equal length); or a scrambled Sobol
        sample (Owen, J. Complexity 14(4), 1998, as in SciPy).
    sample : int or None
        Points of the sample, a power of two.
    seed : int
        Of the sample.
    method : {"closed-form", "replay", "auto"}
        Closed forms only, replays only, or replays for points whose closed form is uncertain
        (:mod:`attnsim.studies.closed_answers`).
    replays : int or None
        For "auto": largest number of replays; the most uncertain points of each chunk come first.
    cache, launch : str
        Conditions, as in `attnsim.api.predict`.
    own : OwnTimings or None
        Timings of one's own that correct answers; points that they correct are replayed.

    Raises
    ------
    InputError
        If the axes cannot be combined so.
    """

    axes: tuple[Axis, ...]
    combine: Combine = "cartesian"
    sample: int | None = None
    seed: int = 0
    method: Method = "auto"
    replays: int | None = None
    cache: str = "warm"
    launch: str = "stream"
    title: str = ""
    own: OwnTimings | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.kernels:
            self._check_fields()
        elif self.method != "replay":
            raise InputError(f"method is {self.method}, but a kernel file has no closed form; write method: replay")
        if (self.combine == "sobol") != (self.sample is not None):
            raise InputError(
                "points is missing; give the size of the Sobol sample, a power of two"
                if self.sample is None
                else f"points is {self.sample}, but combine is {self.combine}; leave it out, or write combine: sobol"
            )
        if self.sample is not None and self.sample & (self.sample - 1):
            below = 1 << (self.sample.bit_length() - 1)
            raise InputError(
                f"points is {self.sample}; a Sobol sample is balanced at powers of two: give {below} or {2 * below}"
            )
        if self.replays is not None and self.method != "auto":
            raise InputError(
                f"replays is {self.replays}, but method is {self.method}; leave it out, or write method: auto"
            )
        if self.own is not None and (self.kernels or self.method == "closed-form"):
            what = "a kernel file" if self.kernels else "method: closed-form"
            raise InputError(
                f"calibration corrects replays of known implementations, not {what}; leave one of them out"
            )
        self._check_lengths()

    def _check_fields(self) -> None:
        inside = {name for axis in self.axes if axis.kind == "shape" for name in axis.values[0]}
        given = {axis.name for axis in self.axes if axis.kind == "workload"}
        known = inside | given
        if both := sorted(inside & given):
            raise InputError(f"workload.{both[0]} is given and is a field of workload.shape too; keep one")
        if "lengths" in known:
            known |= {"batch", "seq_q", "seq_kv"}
            if self.method != "replay":
                raise InputError("workload.lengths takes replays; write method: replay")
        for name in NEEDED:
            if name not in known:
                raise InputError(f"workload.{name} is missing; give it, or put it into workload.shape")
        if not {"seq_q", "seq_kv"} & known:
            raise InputError("workload.seq_q is missing; give the number of queries (with pass decode, seq_kv)")
        if self._takes("passes", "decode") and "seq_kv" not in known:
            raise InputError("workload.seq_kv is missing; a decode call needs the keys in its cache")
        if self.method == "closed-form" and self._takes("tile", "retuned"):
            raise InputError("tile retuned takes replays, but method is closed-form; write method: auto or replay")

    def _takes(self, name: str, value: str) -> bool:
        """True if an axis, or a field of a shape, has a value."""
        own = [item for axis in self.axes if axis.name == name for item in axis.values]
        return value in own or any(
            shape.get(name) == value for axis in self.axes if axis.kind == "shape" for shape in axis.values
        )

    def _check_lengths(self) -> None:
        if self.combine != "sobol" and (open_ended := [axis for axis in self.varying if not axis.stepped]):
            raise InputError(f"{open_ended[0].path} is a range without steps; give steps, or write combine: sobol")
        if self.combine == "list":
            lengths = {len(axis.values): axis.path for axis in self.varying}
            if len(lengths) > 1:
                (one, first), (two, second), *_ = lengths.items()
                raise InputError(
                    f"combine is list, but {first} has {one} values and {second} {two}; give all axes equally many"
                )
        if self.combine == "sobol" and len(self.varying) > MOST_DIMENSIONS:
            raise InputError(f"{len(self.varying)} axes vary; a Sobol sample has at most {MOST_DIMENSIONS} dimensions")
        if len(self) > MOST_POINTS:
            raise InputError(f"the axes make {len(self):.3g} points; allowed: {MOST_POINTS:.0e}; take fewer steps")

    @property
    def kernels(self) -> dict[str, LiftedCall]:
        """Kernel files by name, which replace algorithms and workloads; empty if the study has none."""
        return {
            name: value
            for one in self.axes
            if one.name == "kernel"
            for name, value in zip(one.labels, one.values, strict=True)
        }

    @property
    def varying(self) -> tuple[Axis, ...]:
        """Axes with more than one value."""
        return tuple(axis for axis in self.axes if axis.varies)

    def __len__(self) -> int:
        """Number of points."""
        if self.sample is not None:
            return self.sample
        lengths = [len(axis.values) for axis in self.varying]
        if self.combine == "list":
            return lengths[0] if lengths else 1
        return math.prod(lengths)

    def columns(self, first: int, stop: int) -> Points:
        """Return the points from `first` to `stop` (excluded) as columns; other points are not generated."""
        index = np.arange(first, stop, dtype=np.int64)
        sampled = {} if self.sample is None else self._sampled(first, stop)
        made, stride = {}, 1
        for axis in reversed(self.axes):
            values: Values = axis.values
            if axis.name not in sampled:
                codes = index % len(values) if self.combine == "list" else index // stride % len(values)
                stride *= len(values)
            elif axis.span is not None:
                values, codes = axis.span.at(sampled[axis.name]), index - first
            else:
                codes = np.minimum((sampled[axis.name] * len(values)).astype(np.int64), len(values) - 1)
            made[axis.name] = Column(axis, values, codes)
        return Points(first, stop - first, {axis.name: made[axis.name] for axis in self.axes})

    def _sampled(self, first: int, stop: int) -> dict[str, Floats]:
        """Return the relative position, 0 to 1, of each sample point on each varying axis."""
        from scipy.stats import qmc

        names = [axis.name for axis in self.varying]
        if not names:
            return {}
        sequence = qmc.Sobol(len(names), scramble=True, rng=np.random.default_rng(self.seed))
        if first:
            sequence.fast_forward(first)
        return dict(zip(names, sequence.random(stop - first).T, strict=True))

    @property
    def chunk_points(self) -> int:
        """Points of a chunk, a power of two: about `REPLAYED_CHUNK` replays, and at most `CLOSED_CHUNK` points."""
        if self.method == "closed-form" or self.replays == 0:
            return CLOSED_CHUNK
        if self.replays is None or self.replays >= len(self):
            return REPLAYED_CHUNK
        wanted = min(CLOSED_CHUNK, max(REPLAYED_CHUNK, REPLAYED_CHUNK * len(self) // self.replays))
        return 1 << (wanted.bit_length() - 1)

    def chunks(self) -> int:
        """Return the number of chunks."""
        return -(-len(self) // self.chunk_points)

    def chunk(self, number: int) -> Chunk:
        """Return a chunk, with its share of `replays` by points."""
        size, every = self.chunk_points, len(self)
        first, stop = number * size, min(every, (number + 1) * size)
        shared = None if self.replays is None else self.replays * stop // every - self.replays * first // every
        return Chunk(number, first, stop, shared)

    def digest(self) -> str:
        """Return the SHA-256 of everything that decides the points and their answers, without the title."""
        gpus = [gpu.content() for gpu in self.axes[0].values]
        kernels = {name: digest_of(kernel) for name, kernel in self.kernels.items()}  # repr shortens long arrays
        decides = (replace(self, title=""), self.chunk_points, gpus, kernels, *filter(None, [self.own]))
        return hashlib.sha256(repr(decides).encode()).hexdigest()
