"""Checks of files and folders to be written, before anything is computed."""

from __future__ import annotations

import re
from pathlib import Path

from attnsim.errors import InputError
from attnsim.models.hardware.file_format import ID_PATTERN
from attnsim.models.hardware.files import known_gpu_ids


def check_output(path: Path) -> None:
    """Refuse, before anything is computed, a file that could not be written."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give a file name")
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{path} cannot be written: {folder} is not a folder")


def make_folder(path: Path) -> None:
    """Make the folder of ``--out`` where it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {path} cannot be made a folder: {error.strerror or error}") from None


def new_gpu_file(path: Path, force: bool) -> str:
    """The id of a GPU whose file is to be written, after refusing what could not be."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(f"{path}: end the name with .yaml")
    name = path.stem.lower()
    if not re.fullmatch(ID_PATTERN, name):
        raise InputError(f"{path}: the name becomes the GPU's id; allowed: letters, digits, '.', '_' and '-'")
    if name in known_gpu_ids():
        raise InputError(f"{path}: {name} is a built-in GPU; choose another name")
    check_output(path)
    if path.exists() and not force:
        raise InputError(f"{path} exists; give another name, or --force to replace it")
    return name
