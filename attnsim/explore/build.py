"""The page as files for a web server: the same page, and the answers of a grid of states computed beforehand."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.explore import pictures
from attnsim.explore.server import answered, page_files, plain
from attnsim.explore.state import DEFAULTS, FIGURES
from attnsim.studies.folder import calibration

MADE_BY = "attnsim explore --build"
CASES: Mapping[str, tuple[str, ...]] = {
    "gpu": ("h100-sxm5-80gb", "a100-sxm4-80gb", "b200-sxm-180gb"),
    "model": ("llama-3-70b", "llama-3-8b"),
    "pass": ("prefill", "decode"),
}
"""GPUs and questions whose answers are computed; all else is as the page begins."""
TURNED = ("hbm", "l2", "exp")
STEPS = by_hand(("1x", "1.5x", "2x"), "a step that is seen and one that moves the bound")
"""Sentences have every combination of them; pictures all figures at 1x, one at 2x, and all at 2x."""
OF_CASE = ("compare", "budget")
"""Pictures that are computed of the unchanged GPU alone: they are long, and sliders change them least."""


def query(state: Mapping[str, str]) -> str:
    """Name of a state in the files: the keys that differ from the defaults, in the order of the alphabet."""
    other = {
        key: value
        for key, value in state.items()
        if value != DEFAULTS.get(key, "1x" if key in FIGURES else "") and key not in ("v", "cal")
    }
    return "&".join(f"{key}={value}" for key, value in sorted(other.items()))


def cases() -> list[dict[str, str]]:
    """The GPUs and questions."""
    return [dict(zip(CASES, values, strict=True)) for values in itertools.product(*CASES.values())]


def turns() -> Iterator[tuple[dict[str, str], bool]]:
    """Turned figures, and whether the state has pictures."""
    for values in itertools.product(STEPS, repeat=len(TURNED)):
        at_ends = set(values) <= {STEPS[0], STEPS[-1]}
        yield dict(zip(TURNED, values, strict=True)), at_ends and values.count(STEPS[-1]) in (0, 1, len(TURNED))


def count() -> int:
    """The number of states that are answered."""
    return len(cases()) * len(list(turns()))


def build(folder: Path, done: Callable[[int], object] = lambda states: None) -> int:
    """Write the page and its answers, whole or not at all, and say how many files there are.

    Parameters
    ----------
    folder : Path
        New, empty, or of an earlier build, which is replaced.
    done : callable
        Progress how many more states were answered.

    Raises
    ------
    InputError
        For a folder with anything else in it.
    """
    check_folder(folder)
    folder = folder.absolute()
    try:
        made = Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise InputError(f"{folder.parent} cannot be written ({error.strerror}); give another folder") from None
    try:
        _write(made, done)
        made.chmod(0o755)
        files = sum(path.is_file() for path in made.rglob("*"))
        old = None
        if folder.exists():
            old = folder.rename(made.with_name(f"{made.name}-old"))
        made.rename(folder)
        if old is not None:
            shutil.rmtree(old)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return files


def check_folder(folder: Path) -> None:
    """Refuse, before anything is computed, a folder that is not empty and not an earlier build, or cannot be made."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"--build {folder} is no folder; give another name")
    if not folder.absolute().parent.is_dir() or not os.access(folder.absolute().parent, os.W_OK):
        raise InputError(f"--build {folder} cannot be made: {folder.parent} is no folder to write in")
    if folder.exists() and any(folder.iterdir()) and not _is_own(folder):
        raise InputError(f"--build {folder} is not empty and no earlier build; give another name, or empty it")


def _is_own(folder: Path) -> bool:
    try:
        found = json.loads((folder / "static.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("made_by") == MADE_BY


def _write(folder: Path, done: Callable[[int], object]) -> None:
    for name, path in page_files().items():
        out = folder / (name if name == "index.html" else f"page/{name}")
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, out)
    (folder / "answers").mkdir()
    catalogues: dict[str, Any] = {}
    headlines: dict[str, Any] = {}
    files: dict[str, str] = {}
    for case in cases():
        catalogues[query(case)] = _answer("catalogue", case)
        for turned, drawn in turns():
            state = {key: value for key, value in (case | turned).items() if value != STEPS[0]}
            headlines[query(state)] = _answer("headline", state)
            if drawn:
                changed = state.keys() & set(TURNED)
                names = [name for name in pictures.PICTURES if not (changed and name in OF_CASE)]
                found: dict[str, Any] = {name: _answer("picture", state, name) for name in names}
                found["said"] = {name: _answer("said", state, name) for name in (*names, "headline")}
                files[query(state)] = f"answers/{len(files)}.json"
                _dump(folder / files[query(state)], found)
            done(1)
    grid = {**CASES, **dict.fromkeys(TURNED, STEPS)}
    first = catalogues[query(cases()[0])]
    _dump(
        folder / "static.json",
        {
            "made_by": MADE_BY,
            "version": first["version"],
            "calibration": calibration(),
            "defaults": DEFAULTS,
            "grid": grid,
            "catalogues": catalogues,
            "headlines": headlines,
            "pictures": files,
        },
    )


def _answer(asked: str, state: dict[str, str], name: str = "") -> dict[str, Any]:
    found = answered(asked, {"state": state, "name": name})[1]
    assert isinstance(found, dict)
    return found


def _dump(out: Path, value: object) -> None:
    text = json.dumps(plain(value), allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    out.write_text(text, encoding="utf-8")
