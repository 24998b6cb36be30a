"""Batched MuJoCo physics and the episode core of its tasks."""
