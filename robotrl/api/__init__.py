"""Evaluation, export, inspection and viewing of a path: a run, checkpoint, dataset or bundle."""
