"""The page of a control log."""
