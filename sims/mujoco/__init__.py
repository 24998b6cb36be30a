"""MuJoCo sims on `mujoco.batch`: engine, arm, tasks, camera."""
