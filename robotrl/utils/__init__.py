"""Helpers without robotics: files, hardware, progress bars, media."""
