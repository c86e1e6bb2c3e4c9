"""What each attention computes, in NumPy and float64: the executable definitions."""
