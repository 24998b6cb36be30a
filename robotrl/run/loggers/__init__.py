"""Loggers beside the scalars and TensorBoard files that every run has; each is a callback."""
