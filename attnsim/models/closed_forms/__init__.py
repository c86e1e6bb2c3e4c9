"""Cost of a call by arithmetic on its shape: useful work, and columns of a million calls for sweeps."""
