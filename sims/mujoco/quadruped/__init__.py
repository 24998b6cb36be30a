"""`mujoco/quadruped-velocity`: a quadruped that follows velocity commands."""
