"""Checks that a dataset agrees with the sim and the policy that it is read for."""
