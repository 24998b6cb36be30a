"""Importers of published policies (OpenVLA, lerobot, openpi, `transformers`): strict, and without running any code."""
