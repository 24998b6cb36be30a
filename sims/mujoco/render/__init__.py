"""Camera renderers of the MuJoCo sims."""
