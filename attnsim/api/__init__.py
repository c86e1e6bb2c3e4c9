"""The Python way in: a workload and a GPU in, predictions out."""

from attnsim.api.answering import compare, predict
from attnsim.api.prediction import Prediction
from attnsim.api.tables import predict_table
from attnsim.models.mechanisms import ALGORITHMS

__all__ = ["ALGORITHMS", "Prediction", "compare", "predict", "predict_table"]
