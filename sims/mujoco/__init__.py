"""MuJoCo sims on `mujoco.batch`: physics engine, tasks, experts, cameras."""
