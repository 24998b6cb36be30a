"""The PPO bench: equal settings, the better of a peer's thread counts, gaps, and trainers in processes of their own."""

from __future__ import annotations

import pytest

from benchmarks.kit.figures import Paired
from benchmarks.ppo import bench, methods
from benchmarks.ppo.worker import Worker
from robotrl.errors import ConfigError, RobotrlError
from tests.kits.refusals import raises_naming


def test_the_minibatches_of_every_setting_fill_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in methods.SETTINGS.values():
        assert setting.rollout % setting.minibatch == 0
    monkeypatch.setitem(methods.SETTINGS, "odd", methods.Setting(64, 32, 100, 10))
    with raises_naming(ConfigError, "minibatch", 100, 2048):
        methods.make("robotrl", "odd")


RATES = {
    "robotrl, 1 thread": (200.0, 220.0, 180.0),
    "stable_baselines3, 2 threads": (30.0, 33.0, 27.0),
    "stable_baselines3, 1 thread": (40.0, 44.0, 36.0),
    "rsl_rl, 2 threads": (50.0, 55.0, 45.0),
    "rsl_rl, 1 thread": (20.0, 22.0, 18.0),
}


def test_a_peer_counts_with_the_threads_that_suit_it() -> None:
    figures = bench.figures_of("mb64", bench.Measured(Paired(RATES), 7.5, 1.5))
    sb3, rsl = (figures[f"env_steps_per_s_mb64_vs_{peer}"] for peer in bench.PEERS)
    assert (sb3.value, sb3.peer, sb3.peer_value) == (200.0, "stable_baselines3, 1 thread", 40.0)
    assert sb3.ratio == pytest.approx(5.0) and rsl.ratio == pytest.approx(4.0)
    assert rsl.peer == "rsl_rl, 2 threads"
    assert "Stable-Baselines3, 1 thread: 40; Stable-Baselines3, 2 threads: 30" in sb3.note
    assert "64 envs x 32 steps, minibatch 64, 10 epochs" in sb3.note
    assert figures["compile_s_mb64"].value == 7.5 and figures["compile_again_s_mb64"].value == 1.5
    assert "not in the steps per second" in figures["compile_s_mb64"].note


def test_peers_and_compilers_that_are_absent_leave_gaps() -> None:
    figures = bench.figures_of("mb512", bench.Measured(Paired({"robotrl, 1 thread": (200.0,)}), None, None))
    assert set(figures) == {f"env_steps_per_s_mb512_vs_{peer}" for peer in bench.PEERS}
    figure = figures["env_steps_per_s_mb512_vs_rsl_rl"]
    assert (figure.value, figure.peer, figure.peer_value, figure.ratio) == (200.0, "rsl_rl", None, None)


def test_the_table_for_the_readme() -> None:
    figures = bench.figures_of("mb64", bench.Measured(Paired(RATES), 7.5, 1.5))
    lines = bench.table({"figures": {key: figure.to_json() for key, figure in figures.items()}}).splitlines()
    assert len(lines) == 3 and len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| 64 x 32, 10 epochs | 64 | **200 env steps/s** | 40 | 5 (5 to 5) | 50 | 4 (4 to 4) |")
    assert lines[2].endswith("| 8 s |")


def test_a_trainer_works_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    worker = Worker("stable_baselines3", "wide", 1, bench.TASK)
    assert worker.threads == 1 and worker.compile_s is None
    assert worker.run(1) > 0
    worker.close()


def test_a_trainer_that_cannot_be_made_is_reported_with_its_last_words() -> None:
    with pytest.raises(RobotrlError, match=r"the trainer robotrl mb64 ended with code 1: .*sim 'mujoco/nowhere'"):
        Worker("robotrl", "mb64", 1, "mujoco/nowhere")
