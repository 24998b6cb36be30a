"""Statistics that decide: trends, metrics of rewards, tests that may stop at any time."""
