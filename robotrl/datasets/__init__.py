"""Datasets: the LeRobot v3 layout, demonstrations, rollout storage."""
