"""Driving in a bird's eye view."""
