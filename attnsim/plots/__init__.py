"""Pictures of predictions; matplotlib is imported only inside the functions that draw."""
