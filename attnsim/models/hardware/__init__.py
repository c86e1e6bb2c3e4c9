"""Where it runs: a GPU's figures, their changes, files, rules and energy."""
