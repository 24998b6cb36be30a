"""Rewards that are not the sim's own: what a source of scores promises, a trained success classifier, the wrapper."""
