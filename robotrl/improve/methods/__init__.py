"""Methods of improvement: each one file, and one row of `robotrl.registry.METHODS`."""
