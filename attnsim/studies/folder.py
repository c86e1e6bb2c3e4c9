"""The folder of a sweep: its inputs, its finished chunks, its lock; and functions that read it back.

``manifest.json`` has the inputs that the chunks answer; ``points/part-00000.parquet`` is a finished chunk. Chunks are
written under a temporary name and then renamed, so that a part is complete or absent.

The inputs are hashes: of the study itself, of code and data, of fitted numbers, and of GPUs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import socket
from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnsim
from attnsim.errors import InputError
from attnsim.models.digest import code_digest
from attnsim.models.schedule.kernel_file import digest_of
from attnsim.studies.study import Study
from attnsim.writing import TEMPORARY, write_whole, writing

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.dataset as pads


SUFFIXES = (".csv", ".parquet", ".pq")
MANIFEST, LOCK, PARTS = "manifest.json", "lock", "points"
FORMAT = 1


class Folder:
    """A sweep's results on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.parts = self.path / PARTS

    def part(self, number: int) -> Path:
        """Return the file of a chunk."""
        return self.parts / f"part-{number:06d}.parquet"

    def done(self) -> set[int]:
        """Return the numbers of the finished chunks."""
        return {int(path.stem.removeprefix("part-")) for path in self.parts.glob("part-??????.parquet")}

    def manifest(self) -> dict[str, Any]:
        """Read the manifest: the inputs that the chunks answer.

        Raises
        ------
        InputError
            If there is no manifest, or it cannot be read.
        """
        path = self.path / MANIFEST
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(
                f"{self.path} holds no sweep: no {MANIFEST}; give the folder of `attnsim sweep --out`"
            ) from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {_reason(error)}; give another folder") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("inputs"), dict):
            raise InputError(f"{path} is not the manifest of a sweep of this version; give another folder")
        return found

    @contextlib.contextmanager
    def opened(self, study: Study) -> Iterator[None]:
        """Lock the folder for a study, and write its manifest or check that it has the same inputs.

        Raises
        ------
        InputError
            If another process holds it, its inputs differ, or it cannot be written.
        """
        try:
            self.parts.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path} cannot be made: {_reason(error)}") from None
        with self._locked():
            for left in self.parts.glob(f".*{TEMPORARY}"):  # of a process that was killed
                left.unlink(missing_ok=True)
            self._claim(study)
            yield

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # The system drops an flock with its process, however that ends; pid and host are for the message.
        import fcntl

        path = self.path / LOCK
        try:
            file = path.open("ab+", buffering=0)  # no letter is left to be written when it is closed
        except OSError as error:
            raise InputError(f"{path} cannot be written: {_reason(error)}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                holder = file.read(200).decode(errors="replace").strip() or "another process"
                raise InputError(
                    f"{self.path} is being written by {holder}; wait for it, or give another folder"
                ) from None
            try:
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            except OSError as error:
                raise InputError(f"{path} cannot be written: {_reason(error)}; free some space") from None
            yield

    def _claim(self, study: Study) -> None:
        inputs = inputs_of(study)
        if not (self.path / MANIFEST).exists():
            if self.done():
                raise InputError(f"{self.path} holds parts without a {MANIFEST}; give another folder")
            text = json.dumps({"format": FORMAT, "title": study.title, "inputs": inputs}, indent=1, ensure_ascii=False)
            write_whole(self.path / MANIFEST, f"{text}\n")
            return
        there = self.manifest()["inputs"]
        differing = [name for name in inputs if there.get(name) != inputs[name]]
        if differing:
            raise InputError(
                f"{self.path} holds results of other inputs: {', '.join(differing)} differ; give another folder, or "
                "delete this one"
            )

    def write(self, number: int, table: pa.Table) -> None:
        """Write a chunk, completely or not at all.

        Raises
        ------
        InputError
            If it cannot be written, for example to a full disk.
        """
        with writing(self.part(number), on_failure="nothing is lost") as file:
            _write_parquet(table, file)


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return text or " ".join(str(error).split())


def load(folder: str | Path) -> pd.DataFrame:
    """Load the finished points of a sweep, in the order of the study.

    Parameters
    ----------
    folder : str or Path
        As given to ``attnsim sweep --out``.

    Returns
    -------
    pandas.DataFrame
        One row per point; text columns with few distinct values are categories.

    Raises
    ------
    InputError
        If the folder holds no sweep, or no chunk is finished.
    """
    frame: pd.DataFrame = dataset(folder).to_table().to_pandas()
    return frame


def dataset(folder: str | Path) -> pads.Dataset:
    """Open the finished points as an Arrow dataset, without reading them: for sweeps larger than memory."""
    found = Folder(folder)
    found.manifest()
    parts = [str(found.part(number)) for number in sorted(found.done())]
    if not parts:
        raise InputError(f"{folder} holds no finished chunk yet; run `attnsim sweep` to its end")
    import pyarrow.dataset as pads

    try:
        return pads.dataset(parts, format="parquet")
    except (OSError, ValueError) as error:  # pyarrow's errors on files are of these kinds
        raise InputError(f"{folder} cannot be read: {' '.join(str(error).split())}") from None


def export(folder: str | Path, out: str | Path) -> int:
    """Write a sweep into one CSV or Parquet file, completely or not at all; returns the number of rows.

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
    """Load the finished points as an `xarray.Dataset`: one dimension per axis of a cartesian study, else ``point``.

    Raises
    ------
    InputError
        Without xarray.
    """
    if importlib.util.find_spec("xarray") is None:
        raise InputError("xarray is not installed: pip install xarray, or take attnsim.studies.load for pandas")
    frame = load(folder)
    axes = Folder(folder).manifest()["inputs"]["plan"].get("axes", [])
    for name in frame.columns:
        if frame[name].dtype.name == "category":
            frame[name] = frame[name].astype(object)
    if axes and not frame.duplicated(axes).any():
        return frame.set_index(axes).to_xarray()
    return frame.set_index("point").to_xarray()


PACKAGES = ("models", "simulator", "validation", "api", "studies")
"""Packages in which a change may change an answer."""


def inputs_of(study: Study) -> dict[str, Any]:
    """Return the hashes of everything that decides the answers, and the plan of the chunks.

    Returns
    -------
    dict
        ``study``, ``gpus`` (by id), ``kernels`` (by file, if the study has any), ``version``, ``code``,
        ``calibrations`` (by file) and ``plan``. Two runs with equal inputs write equal parts.
    """
    gpus = study.axes[0].values
    kernels = {name: digest_of(kernel) for name, kernel in study.kernels.items()}
    return {
        "study": study.digest(),
        "gpus": {gpu.id: hashlib.sha256(gpu.content().encode()).hexdigest() for gpu in gpus},
        **({"kernels": kernels} if kernels else {}),
        "version": attnsim.__version__,
        "code": code_digest(*PACKAGES),
        "calibrations": calibration_digests(),
        "plan": {
            "points": len(study),
            "chunk": study.chunk_points,
            "chunks": study.chunks(),
            "axes": [axis.column for axis in study.varying] if study.combine == "cartesian" else [],
        },
    }


@lru_cache(maxsize=1)
def calibration_digests() -> dict[str, str]:
    """Return the SHA-256 of each committed calibration, by file."""
    root = Path(str(resources.files("attnsim.models"))) / "calibrations"
    files = sorted(root.rglob("*.yaml"))
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@lru_cache(maxsize=1)
def calibration() -> str:
    """A hash of the fitted numbers that answers are made with."""
    told = "".join(f"{name} {digest}\n" for name, digest in calibration_digests().items())
    return hashlib.sha256(told.encode()).hexdigest()[:12]
