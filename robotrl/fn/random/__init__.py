"""Random numbers as pure functions of seed, start and decision."""
