"""Hashes of the inputs of a study: the study itself, code and data, fitted numbers, GPUs."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import attnsim
from attnsim.models.digest import code_digest
from attnsim.models.schedule.kernel_file import digest_of
from attnsim.studies.study import Study

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
