"""Bench of training on several workers."""
