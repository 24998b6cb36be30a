"""Labelers, which say which of two segments is better: synthetic answers, a served model, a person in a browser."""
