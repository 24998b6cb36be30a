"""Training on several workers: rollouts collected in shards, in Ray actors or in this process."""
