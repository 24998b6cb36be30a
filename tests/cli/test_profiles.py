"""Profiles: what they change, what may change them again, what they are not for."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from robotrl import config as configs
from robotrl.cli.commands.sim_flags import parse_options, split_flags
from robotrl.cli.commands.train import config_of, parse_config, split_names, usage
from robotrl.cli.profiles import ABOUT, CHUNK, PROFILES, with_profile
from robotrl.configs import recipes
from robotrl.errors import ConfigError
from robotrl.registry import PRESETS, build_sim, sim_options
from tests.kits.paths_kit import ROOT

DOCS = ROOT / "docs"
LARGE = (
    "tabletop-bc-token",
    "tabletop-bc-flow",
    "tabletop-grpo",
    "tabletop-grpo --algo vla-rl",
    "tabletop-grpo --algo opd",
    "simplevla-rl",
    "srpo",
    "vla-opd",
)
PUBLISHED = ("simplevla-rl", "srpo", "vla-rl", "vla-opd", "pi-rl", "pi-rl-noise")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "preset",
    (
        *LARGE,
        "vla-rl",
        "pi-rl",
        "pi-rl-noise",
        "tabletop-reinflow",
        "tabletop-reinflow --algo flow-sde --algo.engine eager",
        "tabletop-flow-grpo",
    ),
)
def test_a_profile_makes_a_config_that_can_run(preset: str, profile: str) -> None:
    """Every field as the profile says, all else as before, and nothing that the config's own checks refuse."""
    before = config_of(preset)
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
    processes = 8 if cfg.fsdp else 1
    assert cfg.algo.microbatch is None or rows % (processes * cfg.algo.microbatch) == 0
    group = getattr(cfg.algo, "group_size", 1)
    assert cfg.sim.num_envs % group == 0
    if cfg.fsdp:
        # what cannot be spread
        assert cfg.algo.engine == "eager" and not getattr(cfg.algo, "ema", 0) and not getattr(cfg.algo, "muon", 0)
    if hasattr(cfg.algo, "groups"):
        drawn = cfg.algo.tries * cfg.sim.num_envs // group
        assert cfg.algo.groups <= drawn == before.algo.tries * before.sim.num_envs // group


def decisions(cfg: Any) -> int:
    """Of an iteration of one process: chunks of eight; episodes half as long as their benchmark's, many succeed."""
    algo, envs = cfg.algo, cfg.sim.num_envs
    if hasattr(algo, "num_steps"):
        return envs * (algo.num_steps // CHUNK)
    episodes = algo.groups * algo.group_size if hasattr(algo, "groups") else envs
    return episodes * recipes.DECISIONS // 2


@pytest.mark.parametrize("profile", [None, *PROFILES])
@pytest.mark.parametrize("preset", PUBLISHED)
def test_an_iteration_of_a_recipe_fills_a_minibatch(preset: str, profile: str | None) -> None:
    """Or its rows would be repeated until they do."""
    cfg = PRESETS.load(preset)()
    cfg = cfg if profile is None else with_profile(cfg, profile)
    assert decisions(cfg) >= cfg.algo.minibatch


def test_fewer_envs_fill_the_same_minibatch_where_they_can() -> None:
    """By hand, 8 envs instead of 64."""
    assert recipes.CHUNK == CHUNK == 8
    pi, vla, opd = (with_profile(PRESETS.load(name)(), "card-24").algo for name in ("pi-rl", "vla-rl", "vla-opd"))
    assert (pi.minibatch, pi.num_steps) == (2048, 8 * 256)
    # 8 x 128 actions are enough for minibatches of 128, and longer rollouts would not fit
    assert (vla.minibatch, vla.num_steps) == (128, 128)
    # an episode in each env, no more
    assert opd.minibatch == 1024 // 8
    assert with_profile(PRESETS.load("pi-rl")(), "cards-8x80").algo.num_steps == 256


def test_a_recipe_draws_failing_tasks_more_often_unless_told_otherwise() -> None:
    assert PRESETS.load("vla-rl")().sim.curriculum == 1.0
    assert parse_config(*split_names(["vla-rl", "--sim.curriculum", "None"]))[0].sim.curriculum is None


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_published_recipe_fine_tunes_a_stored_policy_and_nothing_else(preset: str) -> None:
    cfg, _ = parse_config(*split_names([preset, "--init-from", "somewhere"]))
    configs.check(cfg)
    with pytest.raises(ConfigError, match="init_from is not given: expected a policy to change"):
        configs.check(parse_config(*split_names([preset]))[0])


def typed(page: str, command: str) -> list[list[str]]:
    """The words behind a command, wherever a page has it in a block of its own."""
    blocks = re.findall(r"```(?:bash|sh)?\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if f"{command} " in line]
    return [shlex.split(line.split(command, 1)[1]) for line in lines]


def option(words: list[str], name: str) -> list[str]:
    """What is given behind an option; nothing where it is not there."""
    rest = words[words.index(name) + 1 :] if name in words else []
    return rest[: next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))]


@pytest.mark.parametrize(
    "page", ["vla-finetuning.md", "vla-import.md", "algorithms/vla-rl.md", "algorithms/flow-sde.md"]
)
def test_what_a_page_trains_can_be_typed(page: str) -> None:
    commands = typed(page, "robotrl train")
    assert commands
    for name, *words in commands:
        configs.check(parse_config(*split_names([name, *words]))[0])


def test_what_the_page_imports_sees_what_its_recipe_shows() -> None:
    (imported,) = (words for words in typed("vla-import.md", "robotrl import") if words[0] == "lerobot")
    (trained,) = (
        words for words in typed("vla-import.md", "robotrl train") if option(words, "--init-from") == ["smolvla"]
    )
    cfg, _ = parse_config(*split_names([trained[0], *trained[1:]]))
    assert option(imported, "--out") == ["smolvla"] and option(imported, "--sim") == [cfg.sim.name]
    there, here = (
        build_sim(options, 1, 0).observation_spec
        for options in (
            parse_options(sim_options("mujoco/tabletop"), "robotrl import", split_flags(imported)[0]),
            configs.options_of(cfg.sim),
        )
    )
    assert there == here
    # chunks as the recipes count them
    assert option(imported, "--horizon") == [str(CHUNK)]


def test_openvlas_recipe_shows_pictures_of_its_size() -> None:
    """The towers' size, which the importer asks of the sim."""
    commands = [words for words in typed("vla-finetuning.md", "robotrl train") if "openvla-7b" in words]
    assert len(commands) == 2
    for name, *words in commands:
        assert configs.options_of(parse_config(*split_names([name, *words]))[0].sim).image_size == 224


def test_the_command_line_has_the_last_word() -> None:
    words = ["--algo.microbatch", "2", "--profile", "card-24", "--init-from", "x"]
    cfg, _ = parse_config(*split_names(["tabletop-grpo", *words]))
    assert cfg.algo.microbatch == 2 and cfg.lora.rank == 32 and cfg.device == "cuda" and cfg.sim.num_envs == 8
    same, _ = parse_config(
        *split_names(["tabletop-grpo", "--profile=card-24", "--algo.microbatch", "2", "--init-from", "x"])
    )
    assert same == cfg
    assert parse_config(*split_names(["tabletop-grpo"]))[0] == PRESETS.load("tabletop-grpo")()


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
        parse_config(*split_names(["tabletop-grpo", *words]))


def test_a_small_policys_preset_is_not_for_a_card() -> None:
    with pytest.raises(ConfigError, match=r"profile 'card-24' sets algo.microbatch, which SacCfg lacks"):
        with_profile(config_of("--sim mujoco/hopper --algo sac --algo.env-steps 300000"), "card-24")


def test_the_usage_names_them_all() -> None:
    assert ABOUT.keys() == PROFILES.keys()
    assert all(f"  {name} " in usage() and about in usage() for name, about in ABOUT.items())
