"""Bench `chain`."""
