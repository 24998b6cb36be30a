"""Autoregressive decoding of action tokens."""
