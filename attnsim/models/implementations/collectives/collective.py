"""A collective as latency, bytes over the links and a kernel on SMs: rates are the link's, waits the algorithm's.

A call waits ``base + step * steps`` latencies of the link and sends ``bytes * sent`` over it, each at
``spent + few / gpus`` of the time that the datasheet's rate gives: its kernel keeps some of the SMs, and among few GPUs
fewer channels. Of several algorithms and protocols the fastest runs, as NCCL's tuner chooses (``src/graph/tuning.cc``).
Waits are fitted (``benchmarks/collectives.py``) and lie in ``waits.csv``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.tables import read_csv

Over = Literal["nvlink", "pcie", "network"]

WAITS = Path(__file__).with_name("waits.csv")
_NAMES = {"nvlink": "NVLink", "pcie": "PCIe", "network": "network"}
MOST_GPUS = 4096
PAIR = 2
IN_A_SERVER = 8
"""GPUs of a server, where no switch joins more."""
TIMED_GPUS = 8
"""The largest group of one server that was timed."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to run a collective.

    Parameters
    ----------
    steps : callable
        Of the number of GPUs: exchanges that wait for each other.
    sent : callable
        Of the number of GPUs: bytes that a GPU sends for each byte of its message.
    shared : bool
        Whether between servers all GPUs of one carry together what one of them would send: so do rings, of which there
        is one for each network card.
    switched : bool
        Whether a switch does the adding, which more than two GPUs share.
    """

    steps: Callable[[int], float]
    sent: Callable[[int], float]
    shared: bool = False
    switched: bool = False

    def runs(self, gpu: Gpu, gpus: int) -> bool:
        """Whether these GPUs can run it."""
        return not self.switched or (gpu.link.multicast and gpus > PAIR)

    def sent_over(self, over: Over, gpus: int, per_node: int) -> float:
        """The algorithm over one kind of link."""
        return self.sent(gpus) / (per_node if self.shared and over == "network" else 1)


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective: what every GPU of a group does together.

    Parameters
    ----------
    name : str
    message : str
        What its bytes count, in words.
    algorithms : mapping of str to Algorithm
    """

    name: str
    message: str
    algorithms: Mapping[str, Algorithm]


@dataclass(frozen=True, slots=True)
class Waits:
    """One line of ``waits.csv``: a library's algorithm in one protocol over one kind of link.

    Parameters
    ----------
    library, collective, over, algorithm, protocol : str
    base, step : float
        Latencies of the link: once, and for each step.
    spent, few : float
        Time of a byte over that of the datasheet's rate, and what is added among few GPUs, over their number.
    half_width : float
        Of the 90 % interval of the log time, of GPUs and sizes that were held out.
    """

    library: str
    collective: str
    over: Over
    algorithm: str
    protocol: str
    base: float
    step: float
    spent: float
    few: float
    half_width: float


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """How long a collective takes.

    Parameters
    ----------
    time_s, low_s, high_s : float
        And its 90 % range.
    wait_s : float
        What of it a message without bytes would take.
    algorithm : str
        "ring, LL128".
    over : {"nvlink", "pcie", "network"}
    sent_bytes : float
        What a GPU sends over its link.
    """

    time_s: float
    low_s: float
    high_s: float
    wait_s: float
    algorithm: str
    over: Over
    sent_bytes: float

    @property
    def bound(self) -> str:
        """The larger part of the time: the link's latency, or its bandwidth."""
        return f"{_NAMES[self.over]} {'latency' if 2 * self.wait_s > self.time_s else 'bandwidth'}"


@functools.cache
def waits() -> tuple[Waits, ...]:
    """The lines of ``waits.csv``."""
    numbers = ("base", "step", "spent", "few", "half_width")
    return tuple(
        Waits(**{key: float(cell) if key in numbers else cell for key, cell in row.items()})  # type: ignore[arg-type]
        for row in read_csv(WAITS)
    )


def libraries() -> list[str]:
    """Libraries whose collectives are known."""
    return sorted({one.library for one in waits()})


def over_of(gpu: Gpu, gpus: int, per_node: int) -> Over:
    """The slowest kind of link that a collective goes over."""
    if gpus > per_node:
        return "network"
    return "nvlink" if gpu.link.bandwidth_bytes_per_s and gpus <= gpu.link.gpus else "pcie"


def rate_of(gpu: Gpu, over: Over) -> float:
    """Bytes a second that one GPU sends over a kind of link, by its datasheet."""
    link = gpu.link
    return {"nvlink": link.bandwidth_bytes_per_s, "pcie": link.pcie_bytes_per_s, "network": link.network_bytes_per_s}[
        over
    ]


def check_gpus(gpu: Gpu, gpus: int, per_node: int) -> None:
    """Refuse a group that cannot be."""
    if not 2 <= gpus <= MOST_GPUS:
        raise InputError(f"a collective of {gpus} GPUs; allowed: 2 to {MOST_GPUS}")
    if per_node < 1 or gpus % min(per_node, gpus):
        raise InputError(f"{gpus} GPUs, {per_node} a node; give nodes that have as many GPUs each")


def check_server(gpu: Gpu, gpus: int, shared: str = "each layer") -> None:
    """Refuse more GPUs than share one server or one switch."""
    most = max(IN_A_SERVER, gpu.link.gpus)
    if gpus > most:
        joined = f"{gpu.link.gpus} share its links" if gpu.link.gpus > 1 else f"{most} share a server"
        raise InputError(f"{gpus} GPUs share {shared} and of {gpu.base_id} {joined}; allowed: 1 to {most}")


def collective_time(
    collective: Collective, size_bytes: float, gpu: Gpu, gpus: int, *, per_node: int = 0, library: str = "nccl"
) -> CollectiveTime:
    """The time of one call.

    Parameters
    ----------
    collective : Collective
    size_bytes : float
        Of the message, as :attr:`Collective.message` says.
    gpu : Gpu
    gpus, per_node : int
        GPUs that take part, and how many of them share a server: by default all.
    library : str
        "nccl"; "vllm", "sglang" and "tensorrt-llm" have kernels of their own for short all-reduces within a server, and
        call NCCL for all else.

    Raises
    ------
    InputError
        When the group cannot be, or nobody has timed such a call.
    """
    per_node = per_node or gpus
    check_gpus(gpu, gpus, per_node)
    if library not in libraries():
        raise InputError(f"library is {library!r}; allowed: {', '.join(libraries())}")
    over, called = over_of(gpu, gpus, per_node), {library, "nccl"}
    ours = [one for one in waits() if (one.collective, one.over) == (collective.name, over) and one.library in called]
    lines = [one for one in ours if collective.algorithms[one.algorithm].runs(gpu, gpus)]
    if not lines:
        raise InputError(f"nobody has timed {collective.name} over {over}; allowed: GPUs that share one server")
    return min(
        (_timed(line, collective, size_bytes, gpu, gpus, per_node) for line in lines), key=lambda one: one.time_s
    )


def _timed(
    line: Waits, collective: Collective, size_bytes: float, gpu: Gpu, gpus: int, per_node: int
) -> CollectiveTime:
    algorithm = collective.algorithms[line.algorithm]
    wait = (line.base + line.step * algorithm.steps(gpus)) * gpu.link.latency_s
    sent = algorithm.sent_over(line.over, gpus, per_node) * size_bytes
    time = wait + sent * (line.spent + line.few / gpus) / rate_of(gpu, line.over)
    off, how = math.exp(line.half_width), f"{line.algorithm}, {line.protocol}" if line.protocol else line.algorithm
    return CollectiveTime(time, time / off, time * off, wait, how, line.over, sent)
