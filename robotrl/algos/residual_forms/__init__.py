"""Further forms of `residual`."""
