"""Rules of the training loop: when a run is evaluated and saved, when it ends early, which checkpoint is its best."""
