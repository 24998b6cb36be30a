"""Labels per frame of a dataset, stored beside it."""
