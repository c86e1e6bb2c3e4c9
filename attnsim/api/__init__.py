"""The Python way in: a workload and a GPU in, answers out."""

from attnsim.api.answer import Answer, Answers, TooLarge
from attnsim.api.answering import compare, predict
from attnsim.api.tables import predict_table
from attnsim.models.mechanisms import ALGORITHMS

__all__ = ["ALGORITHMS", "Answer", "Answers", "TooLarge", "compare", "predict", "predict_table"]
