"""An actor in a process of its own, which steps the sim while the learner learns."""
