"""What somebody's own timings say of a model's answers, and answers corrected by them."""
