"""Who takes over, as a part of a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from robotrl.errors import unknown

if TYPE_CHECKING:
    from robotrl.interventions.base import Intervention
    from robotrl.spec import VecSim

Who = Literal["nobody", "script", "keyboard", "gamepad"]
WHO = ("nobody", "script", "keyboard", "gamepad")


@dataclass(frozen=True)
class InterventionCfg:
    """Who watches the policy while it learns, and takes over where it fails."""

    by: Who = "nobody"
    """The sim's scripted expert ("script"), or a human with a "keyboard" or "gamepad"."""
    stall_steps: int = 20
    """A script takes over after so many steps without progress."""
    stall_gain_m: float = 0.005
    """How much nearer to success counts as progress for a script, in metres."""
    steps: int = 20
    """How many steps a script stays in command."""
    noise: float = 0.0
    """Noise on each of a script's actions, 0 to 1."""
    device: str = "/dev/input/js0"
    """The gamepad."""
    env: int = 0
    """Which env a human watches."""
    scale: float = 0.5
    """How far towards the bounds of an action a human can go, above 0, at most 1."""
    dead_zone: float = 0.15
    """Deflections of a gamepad's sticks up to this count as none."""
    release_s: float = 0.5
    """How long after the last movement a human stays in command, in seconds."""

    def build(self, sim: VecSim, seed: int) -> Intervention | None:
        """Whoever it is, ready to watch `sim`; None for nobody.

        Raises:
            ConfigError: a setting out of range, or the device is not there.
            CapabilityError: the sim has no expert, or does not know how far it is from success.
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
        if self.by == "keyboard":
            from robotrl.interventions.keyboard import Keyboard

            device = Keyboard(spec)
        else:
            from robotrl.interventions.gamepad import Gamepad

            device = Gamepad(spec, self.device, dead_zone=self.dead_zone)
        return Teleoperation(device, mapping, sim, env=self.env, release_s=self.release_s)
