"""Collection of rollouts: how a policy acts in training, and who steps the sim for a learner."""
