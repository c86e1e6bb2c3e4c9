"""GEMMs against the tables of the `datasets` extra, held out by GPU; and against figures of others, none of them fitted.

    python benchmarks/gemms.py            # fits without each GPU in turn, and what was held out, by GPU and size
    python benchmarks/gemms.py --write    # and writes waits.yaml of attnsim/models/implementations/gemms
    python benchmarks/gemms.py --figures  # figures alone, which need no extra

Times are of calls in a stream, their launches included, with an L2 that is flushed: profilers' durations of the
smallest kernels are as long. A row with a clock was measured at it; the others are played at what power allows.
`wanted` is what a row is held at; rows without are told, whatever they say. Both softmaxes of TileOPs' pull request 898
take 1.38 times those of 801, five days before: at a lower clock, which it does not say.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a clone with nothing installed

from attnsim.api.layer import GEMM_NUMBERS
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.eager import elementwise, softmax
from attnsim.models.implementations.frameworks.projection import Product, projection
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.simulator.replay import replay

H100, H100_PCIE, H200, H20, RTX_5090 = "h100-sxm5-80gb", "h100-pcie-80gb", "h200-sxm-141gb", "h20", "rtx-5090"
TORCH_TABLE = "zzc0721/torch-performance-test-data, issue"
"""torch.matmul of square bf16 matrices, PyTorch 2.7 to 2.9, the best of a run."""
TILEOPS = "tile-ai/TileOPs, pull request"
"""PyTorch as the baseline of TileOPs: CUPTI, a flushed L2. From June 2026 on its H200s are locked to 1,500 MHz (pull
request 1588)."""

Made = Callable[[Gpu], list[Kernel]]


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured time of a library's kernels.

    Parameters
    ----------
    what, gpu : str
    make : callable
        The kernels on a GPU.
    measured_s : float
    source : str
    clock_hz : float
        SM clock that the source holds; 0 where it says none.
    within : float
        Relative difference from `measured_s` that is wanted; 0 where the figure is told only.
    """

    what: str
    gpu: str
    make: Made
    measured_s: float
    source: str
    clock_hz: float = 0.0
    within: float = 0.0

    def predicted_s(self) -> float:
        """The same kernels, played."""
        gpu = load_gpu(self.gpu)
        if self.clock_hz:
            gpu = gpu.replace({"clock.sustained": f"{self.clock_hz / 1e6:.0f} MHz"})
        schedule = Schedule("projection", "cublas", tuple(self.make(gpu)), self.what, 0)
        return replay(schedule, gpu, GEMM_NUMBERS, cache="cold").time_s


def bmm(batch: int, size: int) -> Made:
    """Products of square bf16 matrices."""
    product = Product("bmm", (size, size, size), ("A", "B", "C"), batch)
    return lambda gpu: projection(product, gpu, "bf16")[0]


def square(gpu: str, tflops: float, number: int, size: int = 8192, within: float = 0.0) -> Figure:
    """One product, measured in TFLOP/s."""
    return Figure(
        f"GEMM {size:,}^3", gpu, bmm(1, size), 2e-12 * size**3 / tflops, f"{TORCH_TABLE} {number}", 0.0, within
    )


def add(*shapes: int) -> Made:
    """A sum of fp16 tensors of so many elements, the last of them the result."""
    (*reads, out), names = [2 * shape for shape in shapes], ("a", "b")
    broadcast = len(set(shapes)) > 1
    return lambda _: [
        elementwise("add", [*zip(names, reads, strict=True)], ("c", out), shapes[-1], broadcast=broadcast)
    ]


def rows_of(rows: int, columns: int, element_bytes: int = 2) -> Made:
    """A softmax of each row."""
    size = rows * columns * element_bytes
    return lambda _: [softmax("softmax", [("S", size)], ("P", size), rows, columns)]


tileops = partial("{} {}".format, TILEOPS)
FIGURES = (
    square(H100, 797.51, 79, within=0.2),
    square(H100, 788.72, 79, 4096),
    square(H100_PCIE, 492.84, 95),
    square(H20, 138.60, 77),
    square(RTX_5090, 236.03, 15),
    Figure("bmm 8 x 1,024^3", H200, bmm(8, 1024), 31.0e-6, tileops(2148), 1.5e9, 0.15),
    Figure("bmm 16 x 512^3", H200, bmm(16, 512), 12.0e-6, tileops(2148), 1.5e9),
    Figure("bmm 8 x 128^3", H200, bmm(8, 128), 3.2e-6, tileops(2148), 1.5e9),
    Figure("GEMM 1,024^3", H200, bmm(1, 1024), 6.2e-6, tileops(2110), 1.5e9),
    *(
        Figure(f"bmm {batch} x {size:,}^3", H20, bmm(batch, size), 2e-12 * batch * size**3 / tflops, tileops(1676))
        for batch, size, tflops in ((8, 1024, 129.49), (16, 512, 102.22), (8, 2048, 134.13), (4, 4096, 139.56))
    ),
    Figure("add 10^6", H200, add(10**6, 10**6, 10**6), 6e6 / 1.39e12, tileops(537), within=0.25),
    Figure("add (1000, 1000) + (1000)", H200, add(10**6, 1000, 10**6), 4.002e6 / 0.62e12, tileops(537), within=0.25),
    Figure("add (8, 1, 1024) + (128, 1)", H200, add(8192, 128, 1 << 20), 2.1138e6 / 0.34e12, tileops(537), within=0.25),
    Figure("softmax 1,024 x 32,768", H200, rows_of(1024, 32768), 109e-6, tileops(801)),
    Figure("softmax 1,024 x 32,768", H200, rows_of(1024, 32768), 152.1e-6, tileops(898)),
    Figure("softmax 4 x 102,400", H200, rows_of(4, 102400), 40e-6, tileops(801)),
)


def main() -> int:
    """Print each figure beside its prediction; 1 where one is not what is wanted."""
    missed = 0
    print(f"{'':28}{'GPU':16}{'MHz':>6}{'measured':>12}{'predicted':>12}{'off':>7}{'wanted':>8}  source")
    for one in FIGURES:
        predicted = one.predicted_s()
        off, wanted = predicted / one.measured_s - 1, f"{one.within:.0%}" if one.within else "-"
        clock = f"{one.clock_hz / 1e6:.0f}" if one.clock_hz else "-"
        times = f"{one.measured_s * 1e6:>9.1f} us{predicted * 1e6:>9.1f} us"
        print(f"{one.what:28}{one.gpu:16}{clock:>6}{times}{off:>+7.0%}{wanted:>8}  {one.source}")
        missed += bool(one.within) and abs(off) > one.within
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
