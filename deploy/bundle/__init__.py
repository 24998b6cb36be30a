"""Bundles on disk: manifest, verification and creation."""
