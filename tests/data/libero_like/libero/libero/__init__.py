"""As LIBERO nests it."""
