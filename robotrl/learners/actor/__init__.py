"""Actor process: steps the sim while the learner updates the policy."""
