"""Bundles of policies with memory: in the controller, in the process that infers, on a robot, in a log."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import safetensors.numpy
import torch

import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
from robotrl.api.evaluation import evaluate_path
from robotrl.cli.main import main
from robotrl.deploy.buffers import InferenceError, Runtime
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.control.log import array_of, read_log
from robotrl.deploy.control.replay import forgotten_from, replay, replayed_ticks
from robotrl.deploy.control.run import run_control
from robotrl.deploy.export import export, parity_of
from robotrl.deploy.inference.frames import FrameReader
from robotrl.deploy.inference.link import AnswerKind, InferenceLink
from robotrl.deploy.inference.request import packed
from robotrl.deploy.inference.worker import Answering
from robotrl.deploy.remote.controller import RemotePolicyCfg, remote_controller
from robotrl.deploy.remote.server import ServeCfg
from robotrl.deploy.remote.serving import serve_bundle
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.runtime import Controller
from robotrl.errors import ConfigError, DataError, NumericsError
from robotrl.policies.recurrent import RecurrentCfg, RecurrentPolicy
from robotrl.transforms import TransformGroup
from tests.kits.deploy_cart import ACTION_SPEC, OBSERVATION_SPEC, PERIOD_S
from tests.kits.real_time import undisturbed
from tests.kits.refusals import raises_naming

CART = "sim:tests.kits.deploy_cart:make_cart"
MEMORY, HORIZON = 6, 2


def policy() -> RecurrentPolicy:
    torch.manual_seed(0)
    transforms = TransformGroup(kit.TinyFlow().transforms.inputs, kit.TinyFlow().transforms.outputs)
    cfg = RecurrentCfg(horizon=HORIZON, memory=MEMORY, hidden=(16,))
    made = cfg.build(OBSERVATION_SPEC, ACTION_SPEC, transforms)
    made.control_dt_s = PERIOD_S
    return made


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recurrent") / "memory.bundle"
    export(policy(), path, observations=kit.recorded())
    kit.wait_for_observations(path)
    return path


def observation(seed: int) -> dict[str, np.ndarray]:
    return {key: rows[0] for key, rows in kit.recorded(1, seed).items()}


def expected(seeds: list[int]) -> list[np.ndarray]:
    """Chunks (H, A) of torch for one episode with an inference on each observation."""
    found, memory, trained = list[np.ndarray](), None, policy()
    for seed in seeds:
        obs = {key: torch.from_numpy(x)[None] for key, x in observation(seed).items()}
        with torch.no_grad():
            chunk, memory = trained.act(obs, memory, None, "mean")
        found.append(chunk[0].numpy())
    return found


# the bundle


def test_the_state_is_an_input_and_an_output_and_its_ticks_are_golden(bundle: Path) -> None:
    opened = open_bundle(bundle)
    manifest = opened.manifest
    assert manifest.schema_version == 4
    (state,) = manifest.states
    (after,) = [port for port in manifest.io.outputs if port.role == "state_out"]
    assert (state.name, state.shape, after.name, after.feeds) == ("memory", (MEMORY,), "next_memory", "memory")
    golden = opened.golden
    states, following = golden.states["memory"], golden.next_states["memory"]
    assert states.shape == following.shape == (manifest.golden.ticks, MEMORY)
    # edge cases at the bounds, then one episode: each tick has the state that the one before it computed
    assert (np.abs(states[3:9]) == 1).all()
    start = manifest.golden.sequence_start
    assert (states[start] == 0).all()
    assert np.abs(states[start + 1 :] - following[start:-1]).max() < 1e-5
    assert parity_of(cast("Any", policy()), opened, kit.recorded(50)).max_rel < 1e-5


def test_a_state_that_is_computed_otherwise_is_refused(bundle: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    arrays = safetensors.numpy.load_file(damaged / "golden.safetensors")
    arrays["next_state/memory"][5, 2] += 0.01
    (damaged / "golden.safetensors").write_bytes(safetensors.numpy.save(arrays))
    graphs.reseal(damaged)
    with pytest.raises(DataError, match="tick 5, element 2 of what state 'memory' becomes"):
        Controller.load(damaged)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(schema_version=3), "schema_version is 3: expected 4 or more"),
        (lambda data: data["io"]["outputs"][2].update(feeds="state"), "expected to feed"),
        (lambda data: data["io"]["outputs"].pop(), "expected to feed"),
    ],
)
def test_a_state_that_leads_nowhere_is_refused(bundle: Path, tmp_path: Path, change: Any, message: str) -> None:
    damaged = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    graphs.reseal(damaged, change)
    with pytest.raises(DataError, match=message):
        open_bundle(damaged)


# the controller


def test_a_step_carries_the_state_and_a_reset_begins_anew(bundle: Path, runtime: Runtime) -> None:
    controller = Controller.load(bundle, runtime=runtime)
    assert controller.engine == ("native" if runtime == "native" else "onnxruntime")
    for seeds in ([1, 2, 3], [3, 2, 1]):
        controller.reset()
        for seed, chunk in zip(seeds, expected(seeds), strict=True):
            # a chunk has two actions: the second step's observation is not inferred from
            for given, action in zip((seed, 99), chunk, strict=True):
                assert controller.step(observation(given)) == pytest.approx(action, abs=1e-5)
                controller.warm()


def test_a_refused_observation_and_a_cancelled_inference_leave_the_state(bundle: Path) -> None:
    controller = Controller.load(bundle)
    first, second = expected([1, 2])
    controller.step(observation(1))
    controller.step(observation(1))
    with pytest.raises(NumericsError):
        controller.step(observation(2) | {"touch": np.float32([np.nan])})
    run = controller.session.run

    def cancelled() -> None:
        raise InferenceError("cancelled")

    controller.session.run = cancelled  # type: ignore[method-assign]
    with pytest.raises(InferenceError):
        controller.step(observation(2))
    controller.session.run = run  # type: ignore[method-assign]
    assert controller.step(observation(2)) == pytest.approx(second[0], abs=1e-5)
    assert not np.allclose(first, second)


def test_an_inference_out_of_turn_is_given_its_state_and_leaves_that_of_the_episode(bundle: Path) -> None:
    controller = Controller.load(bundle)
    controller.step(observation(1))
    state = None
    for seed, chunk in zip([4, 5, 6], expected([4, 5, 6]), strict=True):
        found, state = controller.infer_from(observation(seed), 0, state)
        assert found == pytest.approx(chunk, abs=1e-5)
    controller.step(observation(1))
    assert controller.step(observation(2)) == pytest.approx(expected([1, 2])[1][0], abs=1e-5)
    with raises_naming(ConfigError, "infer_from", "memory"):
        controller.infer(observation(1), 0)
    with raises_naming(ConfigError, "state", "(5,)", "(6,)"):
        controller.infer_from(observation(1), 0, {"memory": np.zeros(5, np.float32)})


def test_a_server_and_a_client_of_one_refuse_it_by_name(bundle: Path) -> None:
    with raises_naming(DataError, "memory", "policy server"):
        serve_bundle(bundle, ServeCfg(), started=lambda manifest, ports: None)
    with (
        raises_naming(DataError, "memory", "policy server"),
        remote_controller(bundle, RemotePolicyCfg("ws://127.0.0.1:1")),
    ):
        raise AssertionError("it was not refused")


# the process that infers


def request(bundle: Path, serial: int, episode: int, seed: int, **change: np.ndarray) -> Message:
    manifest = open_bundle(bundle).manifest
    values = packed(observation(seed) | change, manifest, None, [])
    return Message(
        stamp_ns=0,
        tick=serial,
        episode=episode,
        state_id=serial,
        kind=0,
        mode=0,
        reason=0,
        echo=0,
        lost_ns=0,
        values=values,
    )


def test_the_state_follows_the_inferences_of_an_episode_and_begins_anew_with_the_next(bundle: Path) -> None:
    link, controller = InferenceLink.create(), Controller.load(bundle)
    answering = Answering(link, controller, cast("FrameReader", _NoFrames()))
    chunks = expected([1, 2, 3])
    try:
        for episode in (1, 2):
            found = [answering.answer(request(bundle, 10 * episode + seed, episode, seed)) for seed in (1, 2)]
            # one that fails is not remembered, and its decision is told
            bad = request(bundle, 10 * episode + 5, episode, 9, touch=np.float32([np.nan]))
            assert answering.answer(bad).kind == AnswerKind.REFUSED
            found.append(answering.answer(request(bundle, 10 * episode + 3, episode, 3)))
            for answer, chunk in zip(found, chunks, strict=True):
                assert answer.kind == AnswerKind.CHUNK
                assert answer.values.reshape(HORIZON, -1) == pytest.approx(chunk, abs=1e-5)
        assert link.failed == [15, 25] and "touch" in link.failure
        # the first of an episode failed: the episode begins with the next one
        assert answering.answer(request(bundle, 31, 3, 9, touch=np.float32([np.nan]))).kind == AnswerKind.REFUSED
        answer = answering.answer(request(bundle, 32, 3, 1))
        assert answer.values.reshape(HORIZON, -1) == pytest.approx(chunks[0], abs=1e-5)
    finally:
        link.close()


class _NoFrames:
    """The reader of a robot without cameras."""

    def read(self, numbers: list[int]) -> dict[str, np.ndarray]:
        assert not numbers
        return {}


# a robot and its log


@undisturbed
def test_on_a_robot_the_state_is_carried_and_replayed_bit_for_bit(
    bundle: Path, tmp_path: Path, runtime: Runtime
) -> None:
    log = tmp_path / "log.jsonl"
    run_control(bundle, CART, episodes=2, limit_s=0.6, log=log, runtime=runtime, accept_start=True)
    again = replay(log, bundle)
    assert again.ticks > 20
    assert (again.policy_max_abs, again.sent_max_abs, again.verdicts_differ) == (0.0, 0.0, 0)
    # the second episode alone is replayed, too, and begins without memory
    _, records = read_log(log)
    serials = sorted({record["episode"] for record in records if record["kind"] == "tick"})
    alone = list(replayed_ticks(log, bundle, episode=serials[1]))
    assert len(alone) > 10 and max(tick.policy_error for tick in alone) == 0.0
    # a decision whose chunk was never executed is in the state; one that the log says failed is not
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    unused = [line | ({"policy": None} if line.get("decision") == 1 else {}) for line in lines]
    failed = {"kind": "inference_failed", "episode": serials[0], "decision": 1}
    for marks, differs in (([], False), ([failed], True)):
        written = tmp_path / "marked.jsonl"
        written.write_text("\n".join(json.dumps(line) for line in (*unused, *marks)) + "\n")
        errors = [tick.policy_error for tick in replayed_ticks(written, bundle, serials[0])]
        assert (max(errors) > 1e-4) == differs and (max(errors) > 0) == differs
    # torch computes the same of the log's own observations
    trained, memory, checked = policy(), None, 0
    asked = [r for r in records if r["kind"] == "tick" and r["episode"] == serials[0] and r["asked"] >= 0]
    used = {r["decision"]: array_of(r["policy"]) for r in records if r["kind"] == "tick" and r["cursor"] == 1}
    for record in asked:
        obs = {key: torch.from_numpy(array_of(x))[None] for key, x in record["obs"].items()}
        with torch.no_grad():
            chunk, memory = trained.act(obs, memory, None, "mean")
        if record["asked"] in used:
            assert used[record["asked"]] == pytest.approx(chunk[0, 0].numpy(), abs=1e-4)
            checked += 1
    assert checked > 5


@undisturbed
def test_a_log_that_lacks_ticks_is_replayed_up_to_there(bundle: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    run_control(bundle, CART, episodes=2, limit_s=0.6, log=log, accept_start=True)
    lines = log.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if json.loads(line).get("asked", -1) == 3)
    gone = json.loads(lines[at])
    lost = json.dumps({"kind": "lost", "episode": gone["episode"], "ticks": 1})
    holed = tmp_path / "holed.jsonl"
    holed.write_text("\n".join([*lines[:at], lost, *lines[at + 1 :]]) + "\n")
    following = json.loads(lines[at + 1])["tick"]
    before = list[int]()
    with pytest.raises(DataError, match=f"before tick {following} of episode {gone['episode']}"):
        for tick in replayed_ticks(holed, bundle):
            assert tick.policy_error == 0.0
            before.append(tick.record["tick"])
    assert before[-1] == gone["tick"] - 1
    # the other episode begins without memory
    later = list(replayed_ticks(holed, bundle, episode=gone["episode"] + 1))
    assert len(later) > 10 and max(tick.policy_error for tick in later) == 0.0


@undisturbed
def test_the_whole_way_from_training_to_a_robot(tmp_path: Path) -> None:
    """Train, export, evaluate run and bundle, and drive a simulated robot in processes of its own."""
    run, out, log = (str(tmp_path / name) for name in ("run", "bundle", "log.jsonl"))
    options = "--sim mujoco/reach --sim.num-envs 4 --sim.reward shaped --sim.limit-s 1 --algo ppo --policy recurrent"
    sizes = "--policy.horizon 2 --policy.memory 8 --policy.hidden 16 --algo.env-steps 128 --algo.num-steps 16"
    update = "--algo.minibatch 32 --algo.bptt-steps 4 --algo.epochs 1 --evaluation.episodes 2"
    assert main(["train", *options.split(), *sizes.split(), *update.split(), "--run-dir", run]) == 0
    assert main(["export", run, "--out", out]) == 0
    own, exported = (evaluate_path(Path(path), episodes=4) for path in (run, out))
    assert exported.returns == pytest.approx(own.returns, abs=1e-3) and np.ptp(own.returns) > 0.01
    report = run_control(out, "sim:mujoco/reach", episodes=1, limit_s=0.5, accept_start=True, log=Path(log))
    assert report.ticks > 5
    assert replay(log, out).policy_max_abs == 0.0


def tick(episode: int, number: int, asked: int) -> dict[str, Any]:
    return {"kind": "tick", "episode": episode, "tick": number, "asked": asked}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([tick(1, 0, 0), tick(1, 1, -1), tick(1, 2, 1), tick(2, 0, 2), tick(2, 2, 3)], {}),
        # a decision without a record: the tick that waited for it had no command
        ([tick(1, 0, 0), tick(1, 4, 2), tick(1, 6, 3)], {1: 4}),
        # lost ticks, whether they asked or not; the next episode begins anew
        ([tick(1, 0, 0), {"kind": "lost", "ticks": 1}, tick(1, 3, -1), tick(2, 0, 1)], {1: 3}),
        ([tick(1, 0, 0), {"kind": "lost", "ticks": 9}, tick(2, 0, 5), tick(2, 2, 6)], {}),
        # the beginning of the log is missing
        ([tick(4, 7, 12), tick(4, 9, 13), tick(5, 0, 14)], {4: 7}),
        # the first observations of an episode were not asked with
        ([tick(1, 0, -1), tick(1, 1, -1), tick(1, 2, 0), tick(1, 4, 1)], {}),
    ],
)
def test_where_a_state_is_forgotten_by_hand(records: list[dict[str, Any]], expected: dict[int, int]) -> None:
    assert forgotten_from(records) == expected
