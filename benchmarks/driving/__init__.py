"""Bench `driving`."""
