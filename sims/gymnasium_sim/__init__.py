"""Any Gymnasium environment as a `VecSim`, under the name `gym/ID`; see docs/sims/gymnasium.md."""
