"""Interventions: somebody who watches a policy takes over where it fails: a human with a device in hand, or a script.

What they do is collected as human steps, into the learner's own replay and into that of its demonstrations.
"""
