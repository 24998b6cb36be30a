"""Task progress: milestones, SRPO's progress reward, reward shaping, metrics."""
