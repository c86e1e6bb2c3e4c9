"""Model of a call: the mechanism, the machine, and the cost in closed form."""
