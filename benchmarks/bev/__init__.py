"""Bench `bev`."""
