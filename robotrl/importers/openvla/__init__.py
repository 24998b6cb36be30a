"""Importer of OpenVLA and OpenVLA-OFT checkpoints."""
