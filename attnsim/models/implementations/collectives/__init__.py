"""Communication between GPUs: a file for each collective, and the waits of those who run it."""
