"""Learned rewards: the interface of reward sources, a trained success classifier, process rewards, the sim wrapper."""
