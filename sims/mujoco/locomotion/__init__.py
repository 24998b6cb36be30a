"""Batched versions of Gymnasium's MuJoCo locomotion tasks (v5), with equal states, observations, rewards and ends."""
