# MuJoCo's names are made by its compiled module, which ships no types: everything in it is Any to the checker.
from typing import Any

def __getattr__(name: str) -> Any: ...
