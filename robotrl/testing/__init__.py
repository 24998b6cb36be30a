"""Conformance checks for sims and rewards, for packages that add some; they need no test framework.

`robotrl.testing.sims.CHECKS` and `robotrl.testing.rewards.CHECKS` list the checks. Each raises AssertionError.
"""
