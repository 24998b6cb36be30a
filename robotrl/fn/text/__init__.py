"""Texts and tokens as numbers."""
