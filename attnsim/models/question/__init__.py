"""Questions: one attention call, or one row of a table of them."""
