"""Shared parts of the benches: figures, cells, machine, curves."""
