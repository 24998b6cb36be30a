"""Arithmetic of learned dynamics: likelihood, normalization, choice of networks, values along model steps."""
