"""Evaluate, export, inspect and view what lies at a path: a run, checkpoint, dataset or bundle."""
