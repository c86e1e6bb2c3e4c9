"""Lifting: derives a schedule for the simulator from PTX, by recording one block of each kind in the interpreter."""
