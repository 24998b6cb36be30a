"""Bench `gpu`."""
