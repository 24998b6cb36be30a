"""Interventions: a human with a device, or a script, takes over from a policy that fails.

The corrected steps are collected as human steps, into the learner's own replay and into that of its demonstrations.
"""
