"""Conformance checks for sims, rewards and robots, for packages that add some; they need no test framework.

`robotrl.testing.sims.CHECKS`, `robotrl.testing.rewards.CHECKS` and `robotrl.testing.robots.CHECKS` list the checks.
Each raises AssertionError.
"""
