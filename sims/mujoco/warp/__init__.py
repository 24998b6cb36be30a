"""MuJoCo tasks on MuJoCo Warp: physics, episodes and observations on one device, a GPU or, for tests, the processor."""
