"""Published measurements as pandas frames, with predictions by numbers that were fitted without them.

``attnsim.evidence`` is this module. `rows` returns a table that :func:`attnsim.predict_table` and :func:`attnsim.check`
accept; `held_out` and `unbuilt` add predictions that the rows had no part in.

Examples
--------
>>> import attnsim
>>> table = attnsim.evidence.rows(source="fa2_fig4", implementation="flash-attn.2")
>>> len(table), set(table["gpu"])
(24, {'a100-sxm4-80gb'})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import get_args

import pandas as pd

from attnsim.api.asking import read_gpu
from attnsim.api.trust import assess
from attnsim.errors import InputError, nearest, shown
from attnsim.models.calibrations.choose import choose
from attnsim.models.implementations.choose import find_implementation
from attnsim.validation.checking.hypothetical import PAIRS, outcomes
from attnsim.validation.fitting.held_out import held_out_predictions
from attnsim.validation.measured.datasets import Row, published_cases, published_rows, row_of
from attnsim.validation.measured.sources import PUBLISHED, Role

__all__ = ["held_out", "rows", "sources", "unbuilt"]

Names = str | Sequence[str] | None
"""Filter of a table: one name, several, or None for everything."""

_CASE = (
    "source", "gpu", "implementation", "algorithm", "dtype", "batch", "heads_q", "heads_kv", "seq_q", "seq_kv",
    "head_dim", "head_dim_v", "causal", "window", "cache", "launch", "version", "clock_mhz", "page_size", "time_s",
)  # fmt: skip


def sources() -> pd.DataFrame:
    """Return the published sources by key: laboratory, software, place of publication, and how it was read."""
    return pd.read_csv(PUBLISHED / "sources.csv", index_col="source", keep_default_na=False)


def rows(source: Names = None, gpu: Names = None, implementation: Names = None) -> pd.DataFrame:
    """Return the published measurements as a case table.

    Parameters
    ----------
    source, gpu, implementation : str or sequence of str, optional
        Keys of `sources`, GPUs and implementations to select.

    Returns
    -------
    pandas.DataFrame
        The columns of a case table; `implementation` is the name of the record that the row's own name resolves to.

    Raises
    ------
    InputError
        When a name is not known, or no row is left.
    """
    every = [row_of(case) for case in published_cases(*get_args(Role))]
    return _frame(_narrowed(every, source, gpu, implementation))


def held_out(source: Names = None, gpu: Names = None, implementation: Names = None) -> pd.DataFrame:
    """Return the rows of fits, each predicted with numbers that were fitted without its group.

    Parameters
    ----------
    source, gpu, implementation : str or sequence of str, optional
        As in `rows`.

    Returns
    -------
    pandas.DataFrame
        The columns of `rows`, one row for each of its groups, with ``left_out`` (a band of lengths and heads, or a
        head_dim), ``group``, ``predicted_s``, ``predicted_low_s``, ``predicted_high_s`` (the 90 % range),
        ``error_percent`` and ``in_range``.

    Raises
    ------
    InputError
        When a name is not known, or no row is left.
    """
    found = held_out_predictions(_narrowed(published_rows(), source, gpu, implementation))
    frame = _frame([one.row for one in found])
    trust = [
        assess(one.row.workload, one.row.gpu, choose(one.row.record, one.row.gpu), one.row.record) for one in found
    ]
    frame["left_out"], frame["group"] = [one.split for one in found], [one.group for one in found]
    frame["predicted_s"] = [one.predicted_s for one in found]
    for end in ("low", "high"):
        frame[f"predicted_{end}_s"] = frame["predicted_s"] * [getattr(one, end) for one in trust]
    frame["error_percent"] = 100 * (frame["predicted_s"] / frame["time_s"] - 1)
    frame["in_range"] = frame["time_s"].between(frame["predicted_low_s"], frame["predicted_high_s"])
    return frame


def unbuilt(older: str, newer: str, source: Names = None, implementation: Names = None) -> pd.DataFrame:
    """Return rows of a GPU, each predicted from an older GPU as if the newer one did not exist.

    Parameters
    ----------
    older, newer : str
        A pair of `attnsim.validation.checking.hypothetical`, by ids or names.
    source, implementation : str or sequence of str, optional
        As in `rows`.

    Returns
    -------
    pandas.DataFrame
        The columns of `rows`, each row twice, with these columns:

        - ``figures_from``: "datasheet" (the newer GPU as announced, other figures from the older one) or "gpu file"
          (with its public microbenchmarks);
        - ``numbers_from``: origin of the kernel's numbers;
        - ``predicted_s``, ``error_percent``;
        - ``step``: predicted over measured speedup, if the older GPU has the row too.

    Raises
    ------
    InputError
        When the pair or a name is not known, or no row is left.
    """
    names = (read_gpu(older).id, read_gpu(newer).id)
    pair = next((pair for pair in PAIRS if (pair.older, pair.newer) == names), None)
    if pair is None:
        known = "; ".join(f"{pair.older} to {pair.newer}" for pair in PAIRS)
        raise InputError(f"{names[0]} to {names[1]} is no pair of GPUs with measured steps; allowed: {known}")
    found = outcomes([pair], only=_narrowed(published_rows(), source, newer, implementation))
    if not found:
        raise InputError(f"no kernel of these rows ran on {names[0]} or before; its numbers cannot be carried over")
    frame = _frame([one.row for one in found])
    frame["figures_from"], frame["numbers_from"] = [one.view for one in found], [one.numbers_from for one in found]
    frame["predicted_s"], frame["step"] = [one.predicted_s for one in found], [one.step for one in found]
    frame["error_percent"] = 100 * (frame["predicted_s"] / frame["time_s"] - 1)
    return frame


def _narrowed(every: Iterable[Row], source: Names, gpu: Names, implementation: Names) -> list[Row]:
    found = list(every)
    asked: tuple[tuple[str, list[str], Callable[[Row], str]], ...] = (
        ("source", _named(source), lambda row: row.case.source),
        ("gpu", [read_gpu(name).id for name in _named(gpu)], lambda row: row.gpu.base_id),
        (
            "implementation",
            [find_implementation(name).name for name in _named(implementation)],
            lambda row: row.record.name,
        ),
    )
    for what, names, of in asked:
        known = dict.fromkeys(map(of, found))
        if odd := [name for name in names if name not in known]:
            raise InputError(f"no published row has {what} {shown(odd[0])}; {nearest(odd[0], known)}")
        found = [row for row in found if not names or of(row) in names]
    return found


def _named(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _frame(found: Sequence[Row]) -> pd.DataFrame:
    cells: list[Mapping[str, object]] = []
    for row in found:
        case = row.case
        plain = {name: getattr(case, name) for name in _CASE}
        options = ";".join(f"{name}={value}" for name, value in case.options.items())
        cells.append(plain | {"implementation": row.record.name, "pass": case.passes, "options": options})
    columns = [*_CASE[:4], "pass", *_CASE[4:-1], "options", _CASE[-1]]
    return pd.DataFrame(cells, columns=columns)
