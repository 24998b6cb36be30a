"""Actions of `robotrl reward`, and the flags of reward sources."""
