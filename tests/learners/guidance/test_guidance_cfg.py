"""Guidance among the settings of a run: on the command line, in stored configs, in a resumed run."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from robotrl import config as configs
from robotrl.algos.sac import SacCfg
from robotrl.cli.main import main
from robotrl.config import SimCfg, TrainCfg
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.policies.squashed import SquashedCfg
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.run.directory import Run
from robotrl.training import config_of

ENDPOINT = EndpointCfg(base_url="https://models.example.org/v1", model="m", key_env="MODEL_KEY", max_requests=7)
GUIDANCE = GuidanceCfg(by="endpoint", prompt="Where to?", actions=("a=0", "b=1"), endpoint=ENDPOINT)
RUN = (
    "train --sim mujoco/reach --algo sac --sim.num-envs 2 --algo.env-steps 96 --algo.warmup 32 --algo.batch 16"
    " --algo.num-steps 8 --algo.engine eager --evaluation.episodes 2 --evaluation.num-envs 2 --evaluation.animation 0"
    " --evaluation.every-env-steps 0 --algo.guidance.by expert"
    " --algo.guidance.noise 0.29 --algo.guidance.mode clockwise"
)


def whole(guidance):
    return TrainCfg(SimCfg("mujoco/reach", 2), SacCfg(guidance=guidance), SquashedCfg())


@pytest.mark.parametrize("guidance", [GuidanceCfg(), GUIDANCE])
def test_a_stored_config_reads_back(guidance):
    cfg = configs.resolved(whole(guidance))
    data = json.loads(json.dumps(configs.to_json(cfg)))
    assert configs.from_json(data, {"algo": SacCfg, "policy": SquashedCfg}) == cfg
    configs.check(cfg)


def test_a_config_of_before_has_no_guidance():
    data = json.loads(json.dumps(configs.to_json(configs.resolved(whole(GuidanceCfg())))))
    del data["algo"]["guidance"]
    assert configs.from_json(data, {"algo": SacCfg, "policy": SquashedCfg}).algo == SacCfg()


def test_a_config_names_the_variable_of_the_key_alone(monkeypatch):
    monkeypatch.setenv("MODEL_KEY", "sk-hunter2")
    cfg = whole(GUIDANCE)
    for text in (repr(cfg), str(asdict(cfg)), json.dumps(configs.to_json(configs.resolved(cfg)))):
        assert "MODEL_KEY" in text and "hunter2" not in text


def test_the_command_trains_with_a_teacher(tmp_path):
    assert main([*RUN.split(), "--run-dir", str(tmp_path / "run")]) == 0
    guidance = config_of(Run.open(tmp_path / "run")).algo.guidance
    assert guidance == replace(GuidanceCfg(), by="expert", noise=0.29, mode="clockwise")
    lines = [json.loads(line) for line in (tmp_path / "run" / "scalars.jsonl").read_text().splitlines()]
    assert lines[-1]["suggested"] == 1.0 and "margin_loss" in lines[-1] and "guided" in lines[-1]


def test_a_wrong_setting_is_answered_with_the_nearest(capsys):
    assert main([*RUN.replace("by expert", "by expret").split()]) == 2
    assert "expert" in capsys.readouterr().err
