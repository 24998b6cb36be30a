"""Robot drivers; each runs in a process of its own."""
