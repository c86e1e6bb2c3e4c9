"""Which (query, key) pairs are visible, and which tiles that makes a kernel visit."""
