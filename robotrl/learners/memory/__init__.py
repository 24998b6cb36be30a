"""Training of policies with memory by truncated backpropagation through time."""
