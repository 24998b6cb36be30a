# MuJoCo's names are made by its compiled module, which ships no types: everything in it is Any to the checker.
from typing import Any

from . import batch as batch

def __getattr__(name: str) -> Any: ...
