"""Config of interventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from robotrl.errors import unknown

if TYPE_CHECKING:
    from robotrl.interventions.base import Intervention
    from robotrl.interventions.mapping import Device
    from robotrl.spec import Spec, VecSim

Who = Literal["nobody", "script", "keyboard", "gamepad"]
WHO = ("nobody", "script", "keyboard", "gamepad")


@dataclass(frozen=True)
class InterventionCfg:
    """Settings of the intervention that watches the policy in training and takes over when it fails."""

    by: Who = "nobody"
    """Source of interventions: "nobody", the sim's scripted expert ("script"), or a human with a "keyboard" or
    "gamepad"."""
    stall_steps: int = 20
    """A script takes over after this many steps without progress."""
    stall_gain_m: float = 0.005
    """Decrease of the distance to success that counts as progress for a script, m."""
    steps: int = 20
    """Number of steps for which a script stays in command."""
    noise: float = 0.0
    """Noise on each of a script's actions, 0 to 1."""
    device: str = "/dev/input/js0"
    """Device file of the gamepad."""
    env: int = 0
    """Index of the env that a human watches."""
    scale: float = 0.5
    """Largest action of a human, as a fraction of the bounds, above 0, at most 1."""
    dead_zone: float = 0.15
    """Dead zone of a gamepad's sticks, as a fraction of full deflection."""
    release_s: float = 0.5
    """Seconds that a human stays in command after the last movement."""

    def build(self, sim: VecSim, seed: int) -> Intervention | None:
        """Build the intervention for `sim`; None for "nobody".

        Raises:
            ConfigError: a setting out of range, or the device does not exist.
            CapabilityError: the sim has no expert, or no distance to success.
        """
        if self.by not in WHO:
            raise unknown("by", str(self.by), WHO)
        if self.by == "nobody":
            return None
        if self.by == "script":
            from robotrl.interventions.scripted import ScriptedCorrector, Stalled, distance_of

            stalled = Stalled(distance_of(sim), self.stall_steps, self.stall_gain_m)
            return ScriptedCorrector(sim, [stalled], steps=self.steps, noise=self.noise, seed=seed)
        from robotrl.interventions.mapping import VelocityMap, grippers
        from robotrl.interventions.teleoperation import Teleoperation

        spec = sim.action_spec
        mapping = VelocityMap(spec, self.scale, grippers(spec))
        device = open_device(self.by, spec, self.device, self.dead_zone)
        return Teleoperation(device, mapping, sim, env=self.env, release_s=self.release_s)


def open_device(by: Literal["keyboard", "gamepad"], spec: Spec, path: str, dead_zone: float) -> Device:
    """Open the device of a human.

    Args:
        by: the device.
        spec: of the sim's action.
        path: device file of a gamepad.
        dead_zone: of a gamepad's sticks.

    Raises:
        ConfigError: the device does not exist, or there is no terminal.
    """
    if by == "keyboard":
        from robotrl.interventions.keyboard import Keyboard

        return Keyboard(spec)
    from robotrl.interventions.gamepad import Gamepad

    return Gamepad(spec, path, dead_zone=dead_zone)
