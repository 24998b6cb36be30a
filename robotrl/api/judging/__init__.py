"""Verdicts: whether one policy is better than another, on the same starts, stopping as soon as that is known."""
