"""Success of policies whose actions are executed late."""
