"""Energy of work on a GPU: picojoules per unit of work, and static power.

Each constant states its kind: *derived* from published board measurements, scaled from another process node, or
assumed. None is fitted to attention's energy. Their intervals are wide because the literature is sparse: energies per
byte and per instruction are published for few chips, tensor energies only as whole-board power at full rate. The power
of a GPU beyond these counts (`Architecture.power_over_counted`) is fitted to how far long calls slow down.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from importlib import resources

from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import Constant, Interval
from attnsim.models.hardware.units import HBM
from attnsim.tables import read_csv

PICO = 1e-12

FORMAT_FACTORS = {"fp16": 1.0, "bf16": 1.0, "fp8": 0.5, "tf32": 2.0}
"""Energy of a FLOP over fp16's, assumed: halving the width doubles the rate of the same units."""


@cache
def _table() -> dict[str, Constant]:
    table = {}
    for row in read_csv(resources.files("attnsim.models.hardware").joinpath("energy.csv")):
        low, typical, high = (float(row[end]) for end in ("low", "typical", "high"))
        table[row["name"]] = Constant(low, typical, high, row["unit"], row["kind"], row["source"])
    return table


def work(
    dtype: str,
    *,
    flops: float,
    useful: float,
    lanes: float,
    exps: float,
    smem_bytes: float,
    l2_bytes: float,
    hbm_bytes: float,
) -> dict[str, float]:
    """Work of each unit that energy is counted for.

    Parameters
    ----------
    dtype : str
        Format of the matrices; fp32 matrices are multiplied on the FP32 lanes.
    flops, useful, exps : float
        Executed matrix FLOPs, those of them on data, and exponentials.
    lanes : float
        FP32-lane instructions.

    Returns
    -------
    dict of str to float
        FLOPs on data in fp16 equivalents; FLOPs on padding (rows of zeros, masked pairs); instructions of the FP32
        lanes, exponentials, bytes.
    """
    if dtype == "fp32":
        flops, useful, lanes = 0.0, 0.0, lanes + flops / 2
    factor = FORMAT_FACTORS.get(dtype, 1.0)
    return {
        "tensor": min(flops, useful) * factor,
        "padding": max(0.0, flops - useful) * factor,
        "fp32": lanes,
        "exp": exps,
        "shared_memory": smem_bytes,
        "l2": l2_bytes,
        HBM.name: hbm_bytes,
    }


@lru_cache(maxsize=64)
def constants(capability: int) -> dict[str, Constant]:
    """Constants of a compute capability (90 is 9.0) by unit: those of `work` (tensor in fp16), and static.

    All but static are per unit of work at the clock of the datasheet's tensor peak, times
    `Architecture.power_over_counted`.
    """
    row, table = architecture_of(capability), _table()
    tensor, node = table[f"tensor on {row.name}"], table[f"node of {row.name}"]
    counted = {
        "tensor": tensor,
        "padding": replace(tensor.times(table["padding"]), kind="assumed"),
        **{name: table[name].times(node) for name in ("fp32", "exp", "shared_memory", "l2")},
        HBM.name: table["hbm" if row.hbm else "gddr"],
    }
    drawn = Interval(*[row.power_over_counted] * 3)
    return {name: one.times(drawn) for name, one in counted.items()} | {"static": table["static"]}


def voltage_factor(clock_hz: float, base: Gpu) -> Interval:
    """Energy of an operation on the chip at `clock_hz`, over its energy at the clock of the datasheet's tensor peak."""
    ratio, exponent = clock_hz / base.clock.tensor_hz, _table()["voltage exponent"]
    low, typical, high = (ratio**end for end in (exponent.low, exponent.typical, exponent.high))
    return Interval(min(low, high), typical, max(low, high))
