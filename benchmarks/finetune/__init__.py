"""Bench `finetune`."""
