"""Fitting the numbers of the model to measured rows."""
