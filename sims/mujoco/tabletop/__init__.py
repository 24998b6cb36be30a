"""`mujoco/tabletop`: language-conditioned tabletop manipulation; see docs/sims/tabletop.md."""
