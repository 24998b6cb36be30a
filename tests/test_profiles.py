"""Profiles: what they change, what may change them again, what they are not for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from robotrl import config as configs
from robotrl.commands.train import parse_preset, usage
from robotrl.errors import ConfigError
from robotrl.profiles import ABOUT, PROFILES, with_profile
from robotrl.registry import PRESETS

LARGE = (
    "tabletop-bc-token",
    "tabletop-bc-flow",
    "tabletop-grpo",
    "tabletop-grpo-return",
    "tabletop-srpo",
    "tabletop-srpo-places",
    "tabletop-vla-rl",
    "tabletop-opd",
    "simplevla-rl",
    "srpo",
    "vla-opd",
)
PUBLISHED = ("simplevla-rl", "srpo", "vla-rl", "vla-opd", "pi-rl", "pi-rl-noise")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "preset", (*LARGE, "vla-rl", "pi-rl", "pi-rl-noise", "tabletop-reinflow", "tabletop-flow-sde", "tabletop-flow-grpo")
)
def test_a_profile_makes_a_config_that_can_run(preset: str, profile: str) -> None:
    """Every field as the profile says, all else as before, and nothing that the config's own checks refuse."""
    before = PRESETS.load(preset)()
    cfg = with_profile(before, profile)
    told = PROFILES[profile]
    for path, value in told.items():
        found: Any = cfg
        for name in path.split("."):
            found = getattr(found, name, value)
        assert found == value, path
    assert cfg.evaluation == before.evaluation and cfg.policy == before.policy and cfg.seed == before.seed
    configs.check(replace(cfg, init_from="somewhere"))
    rows = getattr(cfg.algo, "minibatch", None) or cfg.algo.batch
    processes = 8 if cfg.shard else 1
    assert cfg.algo.microbatch is None or rows % (processes * cfg.algo.microbatch) == 0
    group = getattr(cfg.algo, "group_size", 1)
    assert cfg.sim.num_envs % group == 0
    if cfg.shard:
        # what cannot be spread
        assert cfg.algo.engine == "eager" and not getattr(cfg.algo, "ema", 0) and not getattr(cfg.algo, "muon", 0)
    if hasattr(cfg.algo, "groups"):
        drawn = cfg.algo.tries * cfg.sim.num_envs // group
        assert cfg.algo.groups <= drawn == before.algo.tries * before.sim.num_envs // group


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_published_recipe_fine_tunes_a_stored_policy_and_nothing_else(preset: str) -> None:
    cfg, _ = parse_preset(preset, ["--init-from", "somewhere"])
    configs.check(cfg)
    with pytest.raises(ConfigError, match="init_from is not given: expected a policy to change"):
        configs.check(parse_preset(preset, [])[0])


def test_the_command_line_has_the_last_word() -> None:
    words = ["--algo.microbatch", "2", "--profile", "card-24", "--init-from", "x"]
    cfg, _ = parse_preset("tabletop-grpo", words)
    assert cfg.algo.microbatch == 2 and cfg.lora.rank == 32 and cfg.device == "cuda" and cfg.sim.num_envs == 8
    same, _ = parse_preset("tabletop-grpo", ["--profile=card-24", "--algo.microbatch", "2", "--init-from", "x"])
    assert same == cfg
    assert parse_preset("tabletop-grpo", [])[0] == PRESETS.load("tabletop-grpo")()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--profile", "card-42"], "--profile 'card-42' is unknown: did you mean 'card-24'"),
        (["--profile"], "--profile is given without a name"),
        (["--profile", "--seed"], "--profile is given without a name"),
        (["--profile", "cpu", "--profile=cpu"], "--profile is given 2 times: expected once"),
    ],
)
def test_wrong_profiles_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_preset("tabletop-grpo", words)


def test_a_small_policys_preset_is_not_for_a_card() -> None:
    with pytest.raises(ConfigError, match=r"profile 'card-24' sets algo.microbatch, which SacCfg lacks"):
        with_profile(PRESETS.load("hopper-sac")(), "card-24")


def test_the_usage_names_them_all() -> None:
    assert ABOUT.keys() == PROFILES.keys()
    assert all(f"  {name} " in usage() and about in usage() for name, about in ABOUT.items())
