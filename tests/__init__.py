"""Tests; a folder for each package."""
