"""`attnsim algorithms`: what can be asked for, whose kernels are known, and where they are calibrated."""

from __future__ import annotations

from attnsim.cli import options, show


def algorithms(json: options.Json = False) -> None:
    """List algorithms and implementations, the GPUs that run them and where they are calibrated."""
    from attnsim.api import ALGORITHMS
    from attnsim.models.calibration import calibrations
    from attnsim.models.gpu_files import builtin_gpu_ids, load_gpu
    from attnsim.models.implementations import IMPLEMENTATIONS, runs_on

    gpus = [load_gpu(name) for name in builtin_gpu_ids()]
    calibrated: dict[str, list[str]] = {}
    for name, architecture in calibrations():
        calibrated.setdefault(name, []).append(architecture)
    records: list[dict[str, object]] = []
    for record in IMPLEMENTATIONS.values():
        runs = [name for name, item in ALGORITHMS.items() if record.family in item.families]
        records.append(
            {
                "implementation": record.name,
                "algorithms": runs,
                "gpus": [gpu.id for gpu in gpus if runs_on(record, gpu)],
                "compute_capability": list(record.compute_capability),
                "dtypes": list(record.dtypes),
                "calibrated": sorted(calibrated.get(record.name, [])),
                "like": record.like or None,
                "aliases": list(record.aliases),
                "closed": record.closed,
                "source": record.source,
            }
        )
    if json:
        show.print_json(
            {
                "algorithm": name,
                "summary": item.summary,
                "implementations": [r for r in records if name in _list(r)],
            }
            for name, item in ALGORITHMS.items()
        )
        return
    out = show.console()
    show.print_rows(
        out, "Algorithms (--algorithm)", [{"name": n, "what it is": i.summary} for n, i in ALGORITHMS.items()]
    )
    show.print_rows(
        out,
        "Implementations (--implementation)",
        [
            {
                "name": record.name,
                "family": record.family,
                "runs on": _span(record.compute_capability),
                "formats": list(record.dtypes),
                "calibrated on": sorted(calibrated.get(record.name, [])) or f"as {record.like}" * bool(record.like),
            }
            for record in IMPLEMENTATIONS.values()
        ],
    )


def _list(record: dict[str, object]) -> list[str]:
    found = record["algorithms"]
    assert isinstance(found, list)
    return found


def _span(capability: tuple[int, int]) -> str:
    low, high = capability
    if low == high:
        return f"sm_{low}"
    return f"sm_{low} on" if high >= 120 else f"sm_{low} to {high}"
