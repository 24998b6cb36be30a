"""Driving logs: layout on disk, recorder and readers of other layouts."""
