"""Perturbation families of any sim: places, looks, words, noise, mass and friction, by the start of an episode."""
