"""Scoring service: pictures scored by a slow model in processes of its own, while the sim steps on."""
