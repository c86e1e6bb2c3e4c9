"""Fitted numbers: their definitions, their files, and which of them stand in for a kernel."""
