"""Faulty inputs, kind by kind, given to the code that users call; see `robotrl bench faults`.

A module of this package holds the kinds of one area in `KINDS`. A kind makes an input that is wrong in one way, gives
it to the real code, and says the outcome.
"""
