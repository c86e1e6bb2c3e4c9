"""Studies of many questions: sweeps over GPUs, workloads and tiles, hardware search, what-if tables, sensitivities."""

from attnsim.studies.folder import dataset, export, load, to_xarray
from attnsim.studies.running import run
from attnsim.studies.study import Study
from attnsim.studies.study_file import read_study

__all__ = ["Study", "dataset", "export", "load", "read_study", "run", "to_xarray"]
