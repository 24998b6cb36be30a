"""Settings that rewards from pictures share: which pictures, when they are scored, by which model of language."""

from __future__ import annotations

from dataclasses import dataclass, field

from robotrl.errors import check_count, check_number, unknown
from robotrl.rewards.scoring.cfg import LONGEST_S, ServiceCfg
from robotrl.spec import reads

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class ScenePicturesCfg:
    """Pictures of scenes, and when they are scored."""

    view: str | None = None
    """Observed picture or camera to look at; None takes the first."""
    pixels: int = 64
    """Width and height of a camera's pictures."""
    every: int = 1
    """Control steps from one scored picture to the next."""
    max_age: int = 10
    """Control steps for which a score stands, within its episode, until there is a newer one; then steps are
    invalid. 0: only the step whose picture was scored is valid."""
    wait_s: float = 30.0
    """With late scores: longest wait of an on-policy method for them before its advantages, s."""
    kept_steps: int = 1024
    """With late scores: control steps for which one is still taken."""

    def check(self, name: str) -> None:
        """Check the settings.

        Args:
            name: name of the source in the registry, for errors.

        Raises:
            ConfigError: a setting is out of range.
        """
        where = f"reward.{name}"
        check_count(f"{where}.every", self.every, 1, 100_000, "a number of steps")
        check_count(f"{where}.max_age", self.max_age, 0, 100_000, "a number of steps")
        more = "a number of steps, more than max_age,"
        check_count(f"{where}.kept_steps", self.kept_steps, self.max_age + 1, 10_000_000, more)
        check_number(f"{where}.wait_s", self.wait_s, 0.0, LONGEST_S, "s")


@dataclass(frozen=True, kw_only=True)
class PictureRewardCfg(ScenePicturesCfg):
    """Model of pictures and language, pictures, and when they are scored."""

    model: str = field(metadata=reads("model"))
    """Image and text model: a directory (`robotrl reward train clip`), hf-hub:ORG/NAME, or MODEL@CHECKPOINT."""
    device: str = "cpu"
    """Device of the model: "cpu" or "cuda"."""
    background: bool = False
    """Score in processes of its own (`service`): the sim does not wait, and late scores are written into the steps
    that they belong to."""
    service: ServiceCfg = field(default_factory=ServiceCfg)
    """With `background`: settings of the scoring service."""

    def check(self, name: str) -> None:
        """See `ScenePicturesCfg.check`."""
        super().check(name)
        if self.device not in DEVICES:
            raise unknown(f"reward.{name}.device", self.device, DEVICES)
        self.service.check()
