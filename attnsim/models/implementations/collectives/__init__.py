"""What several GPUs say to each other: a file for each collective, and the waits of those who run it."""
