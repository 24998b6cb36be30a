"""Planners among populations of traffic."""
