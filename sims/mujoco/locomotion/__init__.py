"""Gymnasium's MuJoCo locomotion tasks, version 5, in a batch: equal states, observations, rewards and ends."""
