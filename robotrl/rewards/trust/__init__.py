"""Rewards against ground truth: before training on held-out rollouts, and during training by their trends."""
