"""One file an algorithm, the same order in each: Cfg, losses, update, train."""
