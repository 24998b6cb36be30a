"""Rewards in words: the small model, the speed of the scoring service, and driving policies trained with them."""
