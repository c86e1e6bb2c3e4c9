"""The implementations of this project: the schedules of the CUDA kernels in :mod:`attnsim.kernels`."""

from __future__ import annotations

from attnsim.models.implementation import Implementation

OWN_KERNELS: tuple[Implementation, ...] = ()
