"""Remote inference: a server that runs a bundle, and clients that ask it for chunks of actions."""
