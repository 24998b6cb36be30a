"""Robot drivers; each runs in a separate process."""
