"""Fitted numbers: definitions, files, and the choice of a calibration for a kernel."""
