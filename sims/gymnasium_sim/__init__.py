"""Adapter from Gymnasium environments to `VecSim`, under the name `gym/ID`; see docs/sims/gymnasium.md."""
