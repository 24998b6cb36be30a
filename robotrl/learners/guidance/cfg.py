"""Settings of guidance by suggested actions, as part of an algorithm's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from robotrl.errors import ConfigError, check_count, check_number, out_of_range, unknown
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.spec import reads

By = Literal["nobody", "expert", "policy", "endpoint"]
BY: tuple[By, ...] = ("nobody", "expert", "policy", "endpoint")
LONGEST = 10**15
"""Largest number of env steps of a schedule."""


@dataclass(frozen=True)
class GuidanceCfg:
    """Suggested actions: who makes them, and how strongly values and actions follow (Found-RL)."""

    by: By = "nobody"
    """Who suggests actions: "nobody" turns guidance off; the sim's scripted "expert"; a stored "policy"; a served
    vision-language model, the "endpoint"."""
    every: int = 1
    """Env steps from one suggestion to the next, 1 to 1000000; steps between have none."""
    noise: float = 0.0
    """Noise on each suggestion of an expert or a policy: standard deviation in units of half an action's range, 0 to
    10."""
    episode_noise: float = 0.0
    """Errors that the sim's expert draws once per episode, 0 to 1."""
    mode: str | None = None
    """Strategy of the sim's expert, e.g. "left". None: it draws one for each episode."""
    policy: str | None = field(default=None, metadata=reads("policy"))
    """Run or checkpoint of the policy that suggests."""
    margin: float = 2.0
    """By how much a suggested action should be valued above the action that was taken, in units of the return."""
    margin_weight: float = 1.0
    """Weight of this value-margin loss, 0 or more; 0 leaves it out."""
    margin_hold_env_steps: int = 50_000
    """Env steps for which this weight is held; after them it falls linearly."""
    margin_end_env_steps: int = 150_000
    """Env steps at which it is 0."""
    action_weight: float = 0.01
    """Weight of the log-likelihood of suggested actions in the policy's loss, 0 or more; 0 leaves it out."""
    action_end_env_steps: int | None = None
    """Env steps at which this weight is 0, along a half-cosine. None: it stays."""
    action_warp: float = 2.0
    """Power of the share of these env steps inside the cosine, above 0, at most 10; above 1 it falls late."""
    temperature: float = 2.0
    """Advantage of a suggestion over the policy's own action that multiplies its weight by e, above 0."""
    max_weight: float = 20.0
    """Largest such factor, 1 or more."""
    reach: float = 0.98
    """Suggestions are limited to this share of an action's range on either side of its middle, above 0 and below 1: at
    the bounds themselves the density of a bounded policy is infinite."""
    endpoint: EndpointCfg = field(default_factory=EndpointCfg)
    """The served vision-language model."""
    prompt: str = ""
    """Question to the model about the picture; the form of the answer is added."""
    view: str | None = None
    """Observed picture or camera that the model sees. None: the first."""
    pixels: int = 224
    """Width and height of a camera's picture, 8 to 2048."""
    actions: tuple[str, ...] = ()
    """Actions that the model chooses from, each "name=number,number,..." in the sim's units. None: it answers with the
    numbers of an action."""
    wait_s: float = 0.0
    """Longest wait for missing answers at the end of an iteration, s, 0 to 86400. Later answers belong to their step as
    well where the steps are kept (SAC, RLPD); PPO drops them."""

    @property
    def on(self) -> bool:
        """True if somebody suggests actions."""
        return self.by != "nobody"

    def check(self, where: str = "algo.guidance") -> None:
        """Check the ranges.

        Args:
            where: name of these settings, for errors.

        Raises:
            ConfigError: a field is out of range.
        """
        if self.by not in BY:
            raise unknown(f"{where}.by", str(self.by), BY)
        check_count(f"{where}.every", self.every, 1, 1_000_000)
        check_number(f"{where}.noise", self.noise, 0.0, 10.0)
        check_number(f"{where}.episode_noise", self.episode_noise, 0.0, 1.0)
        check_number(f"{where}.margin", self.margin, -1e9, 1e9)
        for name in ("margin_weight", "action_weight"):
            check_number(f"{where}.{name}", vars(self)[name], 0.0, 1e9)
        check_count(f"{where}.margin_hold_env_steps", self.margin_hold_env_steps, 0, LONGEST)
        least = self.margin_hold_env_steps
        check_count(f"{where}.margin_end_env_steps", self.margin_end_env_steps, least, LONGEST, "a whole number")
        if self.action_end_env_steps is not None:
            check_count(f"{where}.action_end_env_steps", self.action_end_env_steps, 1, LONGEST)
        check_number(f"{where}.action_warp", self.action_warp, 0.01, 10.0)
        check_number(f"{where}.temperature", self.temperature, 1e-6, 1e9)
        check_number(f"{where}.max_weight", self.max_weight, 1.0, 1e9)
        check_number(f"{where}.wait_s", self.wait_s, 0.0, 86400.0, "s")
        if not 0 < self.reach < 1:
            raise out_of_range(f"{where}.reach", self.reach, "above 0 and below 1")
        if self.by == "policy" and not self.policy:
            raise ConfigError(f"{where}.by is 'policy' and {where}.policy is not given: expected a run or checkpoint")
        if self.by == "endpoint":
            self.endpoint.check(f"{where}.endpoint")
            check_count(f"{where}.pixels", self.pixels, 8, 2048)
            if not self.prompt.strip():
                raise out_of_range(f"{where}.prompt", self.prompt, "a question about the picture")
