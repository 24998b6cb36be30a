"""Pure functions of planners that propose trajectories and rank them."""
