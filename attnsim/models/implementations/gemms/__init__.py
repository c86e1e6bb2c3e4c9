"""GEMMs as kernels of their own: tiles, waves and split-k in closed form, with waits that were fitted."""
