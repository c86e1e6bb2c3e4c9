"""Speed of a build's kernels relative to the build that calibrations stand for: ``builds.csv``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.names import version_distance
from attnsim.models.question.workload import Workload
from attnsim.tables import read_csv

BACKWARD_WORK = 2.5
"""GEMM work of a backward pass over that of its forward: five products per tile against two."""


@dataclass(frozen=True, slots=True)
class Build:
    """A line of ``builds.csv``.

    Parameters
    ----------
    implementation, version, architecture : str
        Builds that the line holds for; "" is any version or architecture.
    direction : str
        "fwd" or "bwd".
    speed : float
        Speed of SM work, over that of the build that calibrations stand for.
    """

    implementation: str
    version: str
    architecture: str
    direction: str
    speed: float


BUILDS: tuple[Build, ...] = tuple(
    Build(row["implementation"], row["version"], row["architecture"], row["passes"], float(row["speed"]))
    for row in read_csv(Path(__file__).with_name("builds.csv"))
)


def versions_differ(record: Implementation) -> bool:
    """Return whether versions of an implementation are known to differ in speed."""
    return any(one.implementation == record.name and one.version for one in BUILDS)


def build_speed(record: Implementation, w: Workload, gpu: Gpu) -> float:
    """Speed of SM work in the record's version, over the build that calibrations stand for."""
    work = {"fwd": 1.0, "bwd": BACKWARD_WORK}
    shares = {one: work[one] / sum(work[other] for other in w.directions) for one in w.directions}
    return 1.0 / sum(share / _speed(record, one, gpu) for one, share in shares.items())


def _speed(record: Implementation, direction: str, gpu: Gpu) -> float:
    version = min(record.versions, key=lambda known: version_distance(known, record.version)) if record.version else ""
    for one in BUILDS:
        same = (one.implementation, one.direction) == (record.name, direction)
        if same and one.architecture in ("", gpu.architecture) and one.version in ("", version):
            return one.speed
    return 1.0
