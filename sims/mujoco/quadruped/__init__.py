"""`mujoco/quadruped-velocity`: velocity tracking with a quadruped robot."""
