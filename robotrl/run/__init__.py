"""Run directories: checkpoints, logs, locks, random state, inputs."""
