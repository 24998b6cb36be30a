"""Places of the checkout that tests read."""

from pathlib import Path

KITS = Path(__file__).resolve().parent
DATA = KITS.parent / "data"
ROOT = KITS.parents[1]
