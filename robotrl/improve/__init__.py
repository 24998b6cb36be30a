"""From a robot's own logs to a better policy, or to no change: reading logs, fitting, judging, in rounds."""
