"""Vision-language models of `transformers`."""
