"""GPUs: their figures, changes, files, rules and energy."""
