"""`mujoco/tabletop`: an arm does on a table what an instruction says; the page docs/sims/tabletop.md describes it."""
