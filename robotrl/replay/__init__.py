"""Replay buffers: storage in memory or on disk, samplers, recovery after a kill."""
