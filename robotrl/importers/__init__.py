"""Readers of the directories in which others publish policies: strict, and nothing that they hold is ever run."""
