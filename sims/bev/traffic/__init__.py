"""Traffic: drivers, pedestrians, right of way, scenarios."""
