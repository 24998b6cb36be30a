"""Estimates of the memory that fine-tuning takes, before a model is loaded."""
