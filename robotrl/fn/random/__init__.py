"""Random numbers as pure functions of seed, start state and decision."""
