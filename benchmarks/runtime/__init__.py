"""Lateness of the servo beside inference and other load."""
