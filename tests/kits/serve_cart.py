"""The cart as a robot that never reaches its goal, and leaves a mark when it is first told to move.

Where CART_PUSHES names a file, it writes every push that it is told into it. Its reset takes CART_RESET_S.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.kits.deploy_cart import Cart


class EndlessCart(Cart):
    limit_s = 60.0

    def reset(self, state_id: int):
        time.sleep(float(os.environ.get("CART_RESET_S", "0")))
        return super().reset(state_id)

    def command(self, action) -> None:
        super().command(action)
        if action.any():
            Path(os.environ["CART_MARK"]).touch()
        if "CART_PUSHES" in os.environ:
            with open(os.environ["CART_PUSHES"], "a") as file:
                file.write(f"{action[0]}\n")

    def success(self) -> bool:
        return False


def make(seed: int) -> EndlessCart:
    return EndlessCart(seed)
