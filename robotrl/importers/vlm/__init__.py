"""Importer of vision-language models of `transformers`."""
