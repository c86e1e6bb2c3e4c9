"""Masks: which (query, key) pairs are visible, and which tiles a kernel therefore visits."""
