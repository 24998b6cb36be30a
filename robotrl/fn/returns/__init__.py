"""Returns of logged episodes: their values as categories, advantages, and what is chosen by them."""
