"""Rewards from a served vision-language model."""
