"""Analysis of control logs: numbers of a run, seams, tracking, export to MCAP."""
