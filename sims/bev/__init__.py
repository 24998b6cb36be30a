"""Batched driving simulator in bird's eye view."""
