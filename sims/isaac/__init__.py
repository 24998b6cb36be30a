"""Adapters for Isaac Lab, mjlab and Isaac Gym, under the names `isaac/...`; see docs/sims/isaac.md."""
