"""Candidates for a decision: samples of any policy from given noise, the best of them, and ascent on their value."""
