"""Sims in other processes or other Pythons, under the name `remote/NAME`; see docs/sims/remote.md."""
