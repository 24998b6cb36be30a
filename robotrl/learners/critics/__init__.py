"""Chunk critics: their loss, their quality on held-out episodes, and their storage beside a run's policy."""
