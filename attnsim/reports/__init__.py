"""From a study to a document that answers its question, with everything needed to judge and to repeat the answer."""

from attnsim.reports.answers import answer
from attnsim.reports.asking import ReportStudy, read_report_study
from attnsim.reports.page import document_of, draw
from attnsim.reports.writing import write_document

__all__ = ["ReportStudy", "answer", "document_of", "draw", "read_report_study", "write_document"]
