"""Named rules that reject rows of a large measured table which are not measurements of attention.

A rule states a fact about the data and its source. No prediction takes part in a rule. A rule marked `known` names a
fault of one collection. The other rules are physical bounds that hold for any table; together they reject far less than
one row in a hundred.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.files import read_typed
from attnsim.models.hardware.gpu import Gpu

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float64]

SPIKE = by_hand(2.0, "a row this many times slower than both its neighbours in length is a disturbed measurement")
"""Larger than every step that a change of kernel or split was seen to cause (1.6)."""

_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}


@dataclass(frozen=True, eq=False)
class Measured:
    """Rows of one table, with the columns of `attnsim.validation.measured.aiconfigurator_files.read_shapes`.

    Parameters
    ----------
    kind : str
        "context", "generation", "encoder", "mla context" or "mla generation".
    """

    frame: pd.DataFrame
    gpu: Gpu
    framework: str
    version: str
    kind: str

    def all_rows(self, flag: bool) -> Flags:
        """Return one verdict for every row, ``[rows]``."""
        return np.full(len(self.frame), flag)

    def floats(self, column: str) -> Floats:
        """Return a column as float64."""
        return np.asarray(self.frame[column], dtype=np.float64)

    @property
    def visible_pairs(self) -> Floats:
        """(query, key) pairs of one head under the row's mask."""
        queries, keys, window = self.floats("seq_q"), self.floats("seq_kv"), self.floats("window")
        if self.kind == "encoder":
            return queries * keys
        reach = np.where(window > 0, np.minimum(window, keys), keys)  # keys that the last query sees
        first = np.maximum(0.0, reach - (keys - queries) - 1)  # queries before the band is full
        return np.asarray(queries * reach - first * (first + 1) / 2)

    @property
    def flops(self) -> Floats:
        """Floating-point operations of the two products over visible pairs."""
        width = self.floats("head_dim") + self.floats("head_dim_v")
        return 2 * self.floats("batch") * self.floats("heads_q") * self.visible_pairs * width

    @property
    def cache_bytes(self) -> Floats:
        """Bytes of K and V that some query sees."""
        keys, window = self.floats("seq_kv"), self.floats("window")
        seen = np.where(window > 0, np.minimum(keys, window + self.floats("seq_q") - 1), keys)
        width = self.floats("head_dim") + self.floats("head_dim_v")
        if self.kind == "mla generation":
            width = self.floats("head_dim")  # V is a part of K
        size = self.frame["kv_dtype"].astype(str).map(_BYTES).to_numpy(np.float64)
        return self.floats("batch") * self.floats("heads_kv") * seen * width * size


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that rejects rows, with its reason and source; the function of the same name finds the rows.

    Parameters
    ----------
    reason : str
        What is wrong with such rows.
    source : str
        Source of the reason.
    known : bool
        True for a known fault of one collection; otherwise it is a physical bound for any table.
    """

    name: str
    reason: str
    source: str
    known: bool

    @property
    def applies(self) -> Callable[[Measured], Flags]:
        """The function that flags the rows."""
        return _FLAGS[self.name]


def corrupt_collection(m: Measured) -> Flags:
    """Flag all rows of vLLM 0.19 on H200."""
    return m.all_rows(m.framework == "vllm" and m.version.startswith("0.19") and m.gpu.id.startswith("h200"))


def one_token_context(m: Measured) -> Flags:
    """Flag context rows of one token."""
    return m.all_rows(m.kind in ("context", "mla context")) & np.isin(m.floats("seq_q"), 1)


def keys_only_cache(m: Measured) -> Flags:
    """Flag decode rows of TensorRT-LLM 1.0, except long caches without grouped heads."""
    of_these = m.all_rows((m.framework, m.version, m.kind) == ("trtllm", "1.0.0", "generation"))
    return of_these & ((m.floats("heads_q") > m.floats("heads_kv")) | (m.floats("seq_kv") < 512))


def ignored_fp8_cache(m: Measured) -> Flags:
    """Flag MLA rows of TensorRT-LLM 1.0 with an fp8 cache."""
    of_these = m.all_rows((m.framework, m.version) == ("trtllm", "1.0.0") and m.kind.startswith("mla"))
    return of_these & (m.frame["kv_dtype"].astype(str) == "fp8").to_numpy(bool)


def not_a_time(m: Measured) -> Flags:
    """Flag missing, zero, negative or infinite times."""
    time = m.floats("time_s")
    return ~(np.isfinite(time) & (time > 0))


def above_tensor_peak(m: Measured) -> Flags:
    """Flag rows above the peak rate of all tensor cores at the boost clock, in the faster of the two formats."""
    rate = {name: m.gpu.tensor_flops_per_clk(name) for name in _BYTES}
    per_clk = np.maximum(*(m.frame[c].astype(str).map(rate).to_numpy(np.float64) for c in ("dtype", "kv_dtype")))
    return np.asarray(m.flops > m.floats("time_s") * per_clk * m.gpu.sm.count * m.gpu.clock.boost_hz)


def above_hbm_bandwidth(m: Measured) -> Flags:
    """Flag rows that read K and V faster than the datasheet's bandwidth, if the whole L2 was filled before."""
    beyond = m.cache_bytes - m.gpu.l2.capacity_bytes
    return np.asarray(beyond > m.floats("time_s") * m.gpu.hbm.bandwidth_bytes_per_s)


def spike(m: Measured) -> Flags:
    """Flag rows `SPIKE` times slower than both the next shorter and the next longer row of the same shape."""
    shape = ["kernel", "dtype", "kv_dtype", "batch", "heads_q", "heads_kv", "head_dim", "window"]
    ordered = m.frame.sort_values([*shape, "seq_kv"], kind="stable")
    times = ordered.groupby(shape, sort=False, observed=True)["time_s"]
    slower = np.maximum(times.shift(1), times.shift(-1))  # NaN at the ends, which are never spikes
    return np.asarray((ordered["time_s"] > SPIKE * slower).reindex(m.frame.index))


_FLAGS = {
    flags.__name__: flags
    for flags in (
        corrupt_collection,
        one_token_context,
        keys_only_cache,
        ignored_fp8_cache,
        not_a_time,
        above_tensor_peak,
        above_hbm_bandwidth,
        spike,
    )
}

RULES = read_typed(Path(__file__).with_name("implausible.yaml"), "rule", tuple[Rule, ...])
"""Rules in order: a row counts under the first rule that rejects it."""


def rejected_by(m: Measured) -> NDArray[np.object_]:
    """Return the name of the rule that rejects each row, "" for none."""
    verdict = np.full(len(m.frame), "", dtype=object)
    for rule in RULES:
        verdict[(verdict == "") & rule.applies(m)] = rule.name
    return verdict
