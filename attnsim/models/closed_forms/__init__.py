"""The second opinion: what a call costs, written from the paper without walking a schedule."""
