"""Sweeps: training runs over settings and seeds, from a file to a table."""
