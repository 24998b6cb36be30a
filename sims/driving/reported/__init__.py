"""Scenes that another simulator reports, as observations and actions of the driving sims."""
