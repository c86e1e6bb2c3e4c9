"""Attention kernels: our own, and the float64 reference they are checked against."""
