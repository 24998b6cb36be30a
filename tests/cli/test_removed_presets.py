"""Former presets: each is answered with a command that can be typed and trains."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from robotrl import config as configs
from robotrl.api.training import configured
from robotrl.cli.commands.train import config_of
from robotrl.cli.main import main
from robotrl.errors import ConfigError
from robotrl.registry import PRESETS
from robotrl.removed_presets import REMOVED_PRESETS

COMMAND = "robotrl train "


@pytest.mark.parametrize("name", REMOVED_PRESETS)
def test_the_command_that_replaces_it_trains(name: str) -> None:
    command = REMOVED_PRESETS[name]
    assert command.startswith(COMMAND) and name not in PRESETS.rows()
    cfg = config_of(command.removeprefix(COMMAND))
    family = next(
        part for part in ("drive", "peg-insert", "pick-place", "push", "reach", "tabletop", "") if part in name
    )
    assert family in cfg.sim.name
    configs.check(replace(cfg, init_from="somewhere") if cfg.init_changes else cfg)


def test_it_is_named_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "peg-insert-dppo", "--run-dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "peg-insert-dppo" in said and "robotrl train --sim mujoco/peg-insert --algo dppo" in said


def test_it_is_named_in_python() -> None:
    with pytest.raises(ConfigError, match="'hopper-sac' was removed: expected robotrl train --sim mujoco/hopper"):
        configured(None, None, None, "hopper-sac")


def test_settings_that_were_tuned_are_in_the_command() -> None:
    cfg = config_of(REMOVED_PRESETS["tabletop-grpo-return"].removeprefix(COMMAND))
    assert (cfg.algo.iterations, cfg.algo.progress, cfg.algo.keep_by, cfg.algo.groups) == (80, "return", "reward", 32)
    assert cfg.sim.options.reward == "shaped" and cfg.sim.options.families == ("point", "lift", "push")
    rlpd = config_of(shlex.join(["peg-insert-rlpd", "--sim", "mujoco/reach", "--algo.env-steps", "20000"]))
    assert rlpd == config_of(REMOVED_PRESETS["reach-rlpd"].removeprefix(COMMAND))


def test_presets_are_recipes_and_few() -> None:
    own = [name for name, target in PRESETS.rows().items() if target.startswith("robotrl.configs.")]
    assert len(own) <= 32
