"""Demonstrations in the LeRobot v3.0 layout: `DatasetWriter` writes them, `read_dataset` reads and checks them."""

from __future__ import annotations

from robotrl.datasets.reader import Dataset, read_dataset
from robotrl.datasets.writer import DatasetWriter

__all__ = ["Dataset", "DatasetWriter", "read_dataset"]
