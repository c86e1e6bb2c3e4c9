"""Results of a sweep read back: pandas, Arrow, xarray, CSV and one Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnsim.models.errors import InputError
from attnsim.models.writing import writing
from attnsim.studies.folder import Folder

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.dataset as pads

SUFFIXES = (".csv", ".parquet", ".pq")


def load(folder: str | Path) -> pd.DataFrame:
    """The finished points of a sweep, in the order of the study.

    Parameters
    ----------
    folder : str or Path
        As given to ``attnsim sweep --out``.

    Returns
    -------
    pandas.DataFrame
        A row each; columns of few texts are categories.

    Raises
    ------
    InputError
        When the folder holds no sweep, or no chunk of it is finished.
    """
    frame: pd.DataFrame = dataset(folder).to_table().to_pandas()
    return frame


def dataset(folder: str | Path) -> pads.Dataset:
    """The finished points as an Arrow dataset, of which nothing is read yet: for what does not fit the memory.

    Raises
    ------
    InputError
    """
    found = Folder(folder)
    found.manifest()
    parts = [str(found.part(number)) for number in sorted(found.done())]
    if not parts:
        raise InputError(f"{folder} holds no finished chunk yet; run `attnsim sweep` to its end")
    import pyarrow as pa
    import pyarrow.dataset as pads

    try:
        return pads.dataset(parts, format="parquet")
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{folder} cannot be read: {' '.join(str(error).split())}") from None


def export(folder: str | Path, out: str | Path) -> int:
    """Write a sweep into one CSV or Parquet file, chunk by chunk, whole or not at all; returns the rows.

    Raises
    ------
    InputError
        For another ending, or a file that cannot be written.
    """
    out = Path(out)
    if out.suffix.lower() not in SUFFIXES:
        raise InputError(f"{out}: end the name with .csv or .parquet, which choose the format")
    if out.is_dir() or not out.parent.is_dir():
        what = f"{out} is a folder" if out.is_dir() else f"{out.parent} is not a folder"
        raise InputError(f"{out} cannot be written: {what}")
    source = dataset(folder)
    with writing(out) as file:
        return _write_csv(source, file) if out.suffix.lower() == ".csv" else _write_parquet(source, file)


def _write_csv(source: Any, path: Path) -> int:
    rows = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        for batch in source.to_batches():
            batch.to_pandas().to_csv(file, index=False, header=rows == 0, lineterminator="\n")
            rows += batch.num_rows
    return rows


def _write_parquet(source: Any, path: Path) -> int:
    import pyarrow.parquet as pq

    rows = 0
    with path.open("wb") as file, pq.ParquetWriter(file, source.schema, compression="zstd") as writer:
        for batch in source.to_batches():
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def to_xarray(folder: str | Path) -> Any:
    """The finished points as an `xarray.Dataset`: a dimension for each axis of a cartesian study, else ``point``.

    Raises
    ------
    InputError
        Without xarray.
    """
    from importlib.util import find_spec

    if find_spec("xarray") is None:
        raise InputError("xarray is not installed: pip install xarray, or take attnsim.studies.load for pandas")
    import pandas as pd

    frame = load(folder)
    axes = Folder(folder).manifest()["inputs"]["plan"].get("axes", [])
    for name in frame.columns:
        if isinstance(frame[name].dtype, pd.CategoricalDtype):
            frame[name] = frame[name].astype(object)
    if axes and not frame.duplicated(axes).any():
        return frame.set_index(axes).to_xarray()
    return frame.set_index("point").to_xarray()
