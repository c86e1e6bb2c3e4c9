"""What a calibration file says of its fit besides the numbers: on which rows, with which code, how well."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from attnsim.models.calibrations.calibration import Domain
from attnsim.models.writing import write_whole
from attnsim.validation.measured.datasets import Row

HEAD = "# Written by `attnsim fit`; do not edit. See attnsim/validation/fitting/fit.py.\n"


def rows_digest(rows: Sequence[Row]) -> str:
    """SHA-256 of the rows: their sources, questions, cache states and times."""
    text = "\n".join(repr((row.case.source, str(row.workload), row.case.cache, row.measured_s)) for row in rows)
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Version of the code that a prediction depends on: SHA-256 of the Python sources of models and simulator.

    Only a record: a calibration whose errors are still the committed ones is still good when this has changed.
    """
    found = hashlib.sha256()
    for package in ("attnsim.models", "attnsim.simulator"):
        root = Path(str(resources.files(package)))
        for path in sorted(root.rglob("*.py")):
            found.update(f"{package}/{path.relative_to(root).as_posix()}\n".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def evaluation(held: Mapping[str, Sequence[tuple[Row, float]]]) -> dict[str, Any]:
    """Held-out errors and residuals of a calibration, as its file has them.

    Parameters
    ----------
    held : mapping
        Rows with a prediction that did not see them, by what was left out ("band", "head_dim").

    Returns
    -------
    dict
        ``held_out`` (errors ``|predicted / measured - 1|``), ``interval`` (5th and 95th percentile of measured over
        predicted) and ``residuals`` by split: rows, groups, `bias` and quantiles of log(measured / predicted) and their
        mean size, `spread`.
    """
    everything = [pair for pairs in held.values() for pair in pairs]
    ratios = np.array([row.measured_s / predicted for row, predicted in everything])
    errors = np.abs(1 / ratios - 1)
    return {
        "held_out": {
            "rows": len(errors),
            "mean": round(float(errors.mean()), 5),
            "median": round(float(np.median(errors)), 5),
            "p90": round(float(np.quantile(errors, 0.9)), 5),
            "worst": round(float(errors.max()), 5),
        },
        "interval": [round(float(np.quantile(ratios, q)), 4) for q in (0.05, 0.95)],
        "residuals": {split: _residuals(pairs) for split, pairs in sorted(held.items())},
    }


def _residuals(pairs: Sequence[tuple[Row, float]]) -> dict[str, Any]:
    logs = np.log([row.measured_s / predicted for row, predicted in pairs])
    return {
        "rows": len(logs),
        "spread": round(float(np.abs(logs).mean()), 5),
        "bias": round(float(logs.mean()), 5),
        "quantiles": {f"{q:g}": round(float(np.quantile(logs, q)), 5) for q in (0.05, 0.25, 0.5, 0.75, 0.95)},
    }


def domain_of(rows: Sequence[Row]) -> dict[str, Any]:
    """The shapes of the rows, as a calibration file has them."""

    def span(values: Iterable[int]) -> list[int]:
        found = list(values)
        return [min(found), max(found)]

    return {
        "gpus": sorted({row.gpu.base_id for row in rows}),
        "passes": sorted({row.case.passes for row in rows}),
        "head_dims": sorted({row.case.head_dim for row in rows}),
        "seq_q": span(row.case.seq_q for row in rows),
        "seq_kv": span(row.case.seq_kv for row in rows),
        "rows": span(row.case.batch * row.case.heads_q * row.case.seq_q for row in rows),
        "causal": sorted({row.workload.mask.is_causal for row in rows}),
        "windowed": any(row.workload.mask.is_windowed for row in rows),
        "dropout": any(row.workload.dropout for row in rows),
    }


def as_domain(data: Mapping[str, Any]) -> Domain:
    """The domain that `domain_of` describes."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return Domain(**values)


def write_yaml(path: Path, data: Mapping[str, Any]) -> Path:
    """Write a calibration file, whole or not at all."""
    import yaml

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, HEAD + yaml.safe_dump(dict(data), sort_keys=False, width=110))
    return path
