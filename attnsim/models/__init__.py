"""What is computed, on what machine, and what it costs in closed form."""
