"""Distillation of a policy that denoises in several steps into one that takes a single step."""
