"""Learned traffic of `bev/drive`: cloning, fine-tuning by RIFT, realism."""
