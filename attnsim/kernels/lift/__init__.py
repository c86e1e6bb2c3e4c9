"""From a run of PTX to a schedule of the simulator: what one block of each kind executes, as operations on tiles."""
