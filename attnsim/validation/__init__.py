"""Prediction, measurement and publication held against each other: fits, error tables, trust."""
