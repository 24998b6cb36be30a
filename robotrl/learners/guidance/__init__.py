"""Guidance by suggested actions of a teacher or a vision-language model, from which the policy learns."""
