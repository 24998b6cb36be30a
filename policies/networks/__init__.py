"""Network architectures of the policies."""
