"""Bundles on disk: manifest, verification, description."""
