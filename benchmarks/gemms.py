"""GEMMs against the tables of the `datasets` extra, held out by GPU; and against figures of others that nobody fitted.

    python benchmarks/gemms.py            # fits without each GPU in turn, and what was held out, by GPU and size
    python benchmarks/gemms.py --write    # and writes waits.yaml of attnsim/models/implementations/gemms
    python benchmarks/gemms.py --figures  # figures alone, which need no extra

Times are of calls in a stream, their launches included, with an L2 that is flushed: profilers' durations of the
smallest kernels are as long. A row with a clock was measured at it; the others are played at what power allows.
`wanted` is what a row is held at; rows without are told, whatever they say. Both softmaxes of TileOPs' pull request 898
take 1.38 times those of 801, five days before: at a lower clock, which it does not say.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a clone with nothing installed

from attnsim.api.layer import GEMM_NUMBERS
from attnsim.arrays import Floats
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.eager import elementwise, softmax
from attnsim.models.implementations.frameworks.projection import Product
from attnsim.models.implementations.gemms.gemm import gemm_times
from attnsim.models.implementations.gemms.kernels import FORMATS, KERNELS, WAITS, Waits, fit_of
from attnsim.models.schedule.gemm import gemm_path
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.simulator.replay import replay
from attnsim.validation.measured.aiconfigurator_files import PACKAGE, SYSTEMS, VERSION, installed_folder

if TYPE_CHECKING:
    import pandas as pd

H100, H100_PCIE, H200, H20, RTX_5090 = "h100-sxm5-80gb", "h100-pcie-80gb", "h200-sxm-141gb", "h20", "rtx-5090"
TORCH_TABLE = "zzc0721/torch-performance-test-data, issue"
"""torch.matmul of square bf16 matrices, PyTorch 2.7 to 2.9, the best of a run."""
TILEOPS = "tile-ai/TileOPs, pull request"
"""PyTorch as the baseline of TileOPs: CUPTI, a flushed L2. From June 2026 on its H200s are locked to 1,500 MHz (pull
request 1588)."""

Made = Callable[[Gpu], list[Kernel]] | Product


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured time of a library's kernels.

    Parameters
    ----------
    what, gpu : str
    make : callable or Product
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
        if isinstance(self.make, Product):
            waits = fit_of("cublas-bf16", gpu).waits
            stream_s, shape = gpu.launch.stream_s, self.make.shape
            return float(
                gemm_times(gpu, "cublas-bf16", *shape, waits, batch=self.make.batch, launch_s=stream_s).time_s[0]
            )
        schedule = Schedule("projection", "cublas", tuple(self.make(gpu)), self.what, 0)
        return replay(schedule, gpu, GEMM_NUMBERS, cache="cold").time_s


def bmm(batch: int, size: int) -> Product:
    """Products of square bf16 matrices."""
    return Product("bmm", (size, size, size), ("A", "B", "C"), batch)


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


GPUS = {**SYSTEMS, "b300_sxm": "b300-sxm", "gb300": "gb300"}
"""GPU by system folder; of two of them there are no other tables that are read."""
FORMAT_OF = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8-block", "nvfp4": "nvfp4"}
VERSIONS = ("sglang 0.5.14", "sglang 0.5.10", "vllm 0.24.0", "vllm 0.14.0", "trtllm 1.3.0rc20", "trtllm 1.0.0")
LEAST = 512
"""Columns and k of a product that is fitted and checked: shorter ones are no projection's of a served model."""
FITTED, CHECKED = 240, 600
"""Rows of a table, drawn at random."""
ZEROS = 0.85
"""Where the fit of their power starts."""
FREE = tuple(one.name for one in fields(Waits))
SIZES = {"M to 64": 64, "to 1,024": 1024, "more": math.inf}


def table_rows() -> pd.DataFrame:
    """Rows of the tables, with what their collector does (ai-dynamo/aiconfigurator, ``collector/*/collect_gemm.py``).

    A graph multiplies by `weights` matrices in turn, 6 in vLLM and SGLang and as many as fill the L2 in TensorRT-LLM;
    `converts` is how often A is converted, twice for TensorRT-LLM's fp8, which looks for its largest first. Matrices of
    vLLM are empty or of one number (`plain`). Its fp8-block rows are left out: they are timed without a graph.
    """
    import pandas as pd

    folder, found = installed_folder(), []
    if folder is None:
        raise SystemExit('gemms: the tables are not installed; pip install "attnsim[datasets]", or give --figures')
    for path in sorted(folder.glob("*/gemm/*/*/gemm_perf.parquet")):
        system, _, framework, version, _ = path.relative_to(folder).parts
        if system not in GPUS or f"{framework} {version}" not in VERSIONS:
            continue
        gpu = load_gpu(GPUS[system])
        raw = pd.read_parquet(path, columns=["gemm_dtype", "m", "n", "k", "latency"])
        raw = raw[(raw.n >= LEAST) & (raw.k >= LEAST)]
        for dtype, some in raw[raw.gemm_dtype.isin(FORMAT_OF)].groupby("gemm_dtype"):
            name = FORMAT_OF[str(dtype)]
            if (framework, name) == ("vllm", "fp8-block"):
                continue
            one = some.sample(min(CHECKED, len(some)), random_state=0).reset_index(drop=True)
            filling = np.clip(np.ceil(gpu.l2.capacity_bytes / (one.n * one.k * FORMATS[name].bytes)), 1, 5)
            weights = filling if framework == "trtllm" else 1.0 if (framework, name) == ("vllm", "nvfp4") else 6.0
            found.append(
                one.assign(
                    gpu=gpu.id,
                    framework=framework,
                    kernel="cublas-bf16" if name == "bf16" else f"{framework}-{name}",
                    path=gemm_path(gpu),
                    time_s=one.latency * 1e-3,
                    weights=weights,
                    fitted=np.arange(len(one)) < FITTED,
                    converts=2.0 if (framework, name) == ("trtllm", "fp8") else 1.0,
                    plain=framework == "vllm" and name in ("bf16", "fp8"),
                )
            )
    return pd.concat(found, ignore_index=True)


GROUPED = {
    "moe_torch_flow_cutlass": "trtllm-grouped",
    "deepgemm": "trtllm-grouped",
    "sglang_flashinfer_trtllm_moe": "flashinfer-grouped",
    "vllm_unquantizedfusedmoe_flashinfer_trtllm_trtllmbf16experts": "flashinfer-grouped",
    "sglang_fused_moe_triton": "triton-grouped",
    "vllm_unquantizedfusedmoe_triton_tritonexperts": "triton-grouped",
    "vllm_fp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic": "flashinfer-grouped",
    "vllm_fp8moe_triton_tritonexperts": "triton-grouped",
}
"""Kernel by its name in the tables of experts."""
UNGATED = (6, 22)
"""Experts a token of models whose experts have no gate (Nemotron): another number of products, told nowhere."""


IN_GROUPS = {"num_experts": 256, "hidden_size": 7168, "inter_size": 2048}
"""DeepSeek-V3's experts, of which a token chooses among four of eight groups. Scores that the collectors of vLLM and
SGLang spread evenly are equal there, so that both choose the same groups each time: half the experts are read."""


def expert_rows() -> pd.DataFrame:
    """Rows of experts that all are on one GPU, with tokens spread evenly; m is an expert's tokens."""
    import pandas as pd

    folder, found = installed_folder(), []
    assert folder is not None
    for path in sorted(folder.glob("*/moe/*/*/moe_perf.parquet")):
        system, _, framework, version, _ = path.relative_to(folder).parts
        if system not in GPUS or f"{framework} {version}" not in VERSIONS:
            continue
        raw = pd.read_parquet(path)
        raw = raw[(raw.distribution == "balanced") & (raw.moe_ep_size == 1) & ~raw.topk.isin(UNGATED)]
        raw = raw[raw.kernel_source.isin(GROUPED) & raw.moe_dtype.isin(FORMAT_OF)]
        if framework != "trtllm":
            raw = raw[(raw[list(IN_GROUPS)] != pd.Series(IN_GROUPS)).any(axis=1)]
        for (source, dtype), some in raw.groupby(["kernel_source", "moe_dtype"]):
            name, gpu = f"{GROUPED[str(source)]}-{FORMAT_OF[str(dtype)]}", load_gpu(GPUS[system])
            if name in KERNELS:
                one = some.sample(min(CHECKED, len(some)), random_state=0).reset_index(drop=True)
                routed = one.num_tokens * one.topk
                reached = np.minimum(one.num_experts, routed)
                found.append(
                    one.assign(
                        gpu=gpu.id,
                        framework=framework,
                        kernel=name,
                        path=gemm_path(gpu),
                        time_s=one.latency * 1e-3,
                        batch=reached,
                        m=routed / reached,
                        n=one.hidden_size,
                        k=one.inter_size / one.moe_tp_size,
                        fitted=np.arange(len(one)) < FITTED,
                    )
                )
    return pd.concat(found, ignore_index=True)


def expert_times(rows: pd.DataFrame, waits: Waits) -> Floats:
    """Predicted times of experts: gate and up, an activation, down. The weights are read in turn with each other."""
    out = np.empty(len(rows))
    for gpu_id, at in rows.groupby("gpu").indices.items():
        one, gpu, kernel = rows.iloc[at], load_gpu(str(gpu_id)), rows.kernel.iloc[0]
        up = gemm_times(gpu, kernel, one.m, 2 * one.k, one.n, waits, batch=one.batch, weights=1.5)
        down = gemm_times(gpu, kernel, one.m, one.n, one.k, waits, batch=one.batch, weights=3.0)
        moved_s = 6 * one.m * one.batch * one.k / gpu.l2.bandwidth_bytes_per_s
        out[at] = up.time_s + down.time_s + moved_s + gpu.launch.graph_s
    return out


def times(rows: pd.DataFrame, waits: Waits, plain: float) -> Floats:
    """Predicted times of rows of one kernel; matrices of one number draw `plain` of the power."""
    if KERNELS[rows.kernel.iloc[0]].grouped:
        return expert_times(rows, waits)
    out = np.empty(len(rows))
    for gpu, at in rows.groupby("gpu").indices.items():
        one = rows.iloc[at]
        found = gemm_times(
            load_gpu(str(gpu)), one.kernel.iloc[0], one.m, one.n, one.k, waits, weights=one.weights,
            converts=one.converts.to_numpy(), power=np.where(one.plain, plain, 1.0),
        )  # fmt: skip
        out[at] = found.time_s
    return out


def fit(rows: pd.DataFrame) -> tuple[Waits, float]:
    """Waits by robust least squares of log time, from the priors, and the power of plain matrices."""
    some = rows[rows.fitted]
    measured, origin = np.log(some.time_s.to_numpy()), np.log([*asdict(Waits()).values(), ZEROS])

    def off(x: Floats) -> Floats:
        *numbers, plain = map(float, np.exp(x))
        logs = np.log(times(some, Waits(*numbers), plain)) - measured
        return np.concatenate((logs, 0.004 * math.sqrt(len(some)) * (x - origin)))

    found = least_squares(off, origin, loss="soft_l1", f_scale=0.1, max_nfev=12, diff_step=0.02)
    *numbers, plain = (float(f"{value:.3g}") for value in np.exp(found.x))
    return Waits(*numbers), plain


def held_out(rows: pd.DataFrame) -> Floats:
    """Log of predicted over measured, of each GPU by the waits of the others."""
    out = np.empty(len(rows))
    for gpu, at in rows.groupby("gpu").indices.items():
        out[at] = np.log(times(rows.iloc[at], *fit(rows[rows.gpu != gpu]))) - np.log(rows.time_s.iloc[at])
    return out


def told(rows: pd.DataFrame, by: list[str]) -> str:
    """Mean errors of rows in %, by size."""
    import pandas as pd

    size = pd.cut(rows.num_tokens.fillna(rows.m), [0, *SIZES.values()], labels=list(SIZES))
    off = 100 * np.abs(np.expm1(rows.log))
    table = off.groupby([*(rows[name] for name in by), size], observed=True).mean().unstack()
    table = table.assign(all=off.groupby([rows[name] for name in by]).mean(), rows=rows.groupby(by).size())
    return str(table.round(1).to_string())


def tables(write: bool) -> None:
    """Print what was held out, and write the waits of all."""
    import pandas as pd

    rows = pd.concat((table_rows(), expert_rows()), ignore_index=True)
    found, checked = dict[str, dict[str, object]](), []
    for name in KERNELS:
        for path, some in rows[rows.kernel == name].groupby("path"):
            if some.gpu.nunique() == 1:
                print(f"{name} on {path}: {len(some)} rows of one GPU, not held out and not fitted")
                continue
            one = some.reset_index(drop=True)
            one = one.assign(log=held_out(one))
            checked.append(one)
            waits, plain = fit(one)
            off = np.abs(one.log)
            found.setdefault(name, {})[str(path)] = {
                "source": f"{PACKAGE} {VERSION}, {'moe_perf' if KERNELS[name].grouped else 'gemm_perf'}",
                "date": datetime.date.today().isoformat(),
                "gpus": sorted(set(one.gpu)),
                "rows": int(one.fitted.sum()),
                "waits": asdict(waits),
                "held_out": float(f"{np.abs(np.expm1(one.log)).mean():.3g}"),
                "half_width": float(f"{off.quantile(0.9):.3g}"),
            }
            print(f"{name} on {path}: {100 * np.abs(np.expm1(one.log)).mean():.1f} % held out; plain {plain}; {waits}")
    every = pd.concat(checked, ignore_index=True)
    for by in (["kernel"], ["kernel", "gpu"], ["kernel", "framework"], ["gpu"]):
        print(told(every, by), end="\n\n")
    if write:
        head = "# Written by `python benchmarks/gemms.py --write`; do not edit. Meanings: Waits of kernels.py.\n"
        WAITS.write_text(head + yaml.safe_dump(found, sort_keys=False), encoding="utf-8")


def figures() -> int:
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
    if "--figures" not in sys.argv[1:]:
        tables("--write" in sys.argv[1:])
    sys.exit(figures())
