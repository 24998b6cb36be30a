"""Benches `quickstart` and `cartpole`."""
