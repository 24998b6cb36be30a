"""Manipulation tasks of a six-joint arm (reach, push, pick-place, peg-insert), each with a scripted expert."""
