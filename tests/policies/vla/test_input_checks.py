"""What somebody hands to a vision-language-action policy, or to its bundle: what is bad is refused by name."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.policies.vla.test_flow as flows
import tests.rollout.test_compatibility as fit
from robotrl.api.evaluation import actor_of
from robotrl.deploy.bundle import manifest as schema
from robotrl.deploy.bundle import strict
from robotrl.deploy.bundle.bundle import GoldenTicks, open_bundle
from robotrl.deploy.bundle.match import RobotInfo, wire
from robotrl.deploy.export import export
from robotrl.deploy.runtime import Controller
from robotrl.deploy.session import run_ticks
from robotrl.errors import ConfigError, NumericsError
from robotrl.policies.generative import ChainPolicy
from robotrl.policies.steered import SteeredCfg
from robotrl.policies.vla.flow import FlowVla
from robotrl.policies.vla.input_checks import check_given
from robotrl.policies.vla.roles import features_key
from robotrl.policies.vla.token import TokenPolicy, TokenVlaCfg
from robotrl.sims.mujoco.tabletop.language import MAX_WORDS, VOCABULARY
from robotrl.spec import Spec, visible
from robotrl.spec.checks import misfit
from tests.deploy.test_runtime import seal

KINDS = ("token", "smolvla", "pi0")
PICTURE = "image_flat_near"
ROWS = flows.SEEN
LAST = len(VOCABULARY) - 1
Arrays = dict[str, Any]


@functools.cache
def policy_of(kind: str) -> Any:
    if kind != "token":
        return flows.policy_on(kind, denoising_steps=2)
    torch.manual_seed(0)
    sim = flows.tabletop()
    small = {"vision_width": 32, "vision_depth": 2, "vision_heads": 2, "width": 64, "heads": 2, "mlp": 128}
    transforms = flows.policy_on("smolvla").transforms
    return TokenVlaCfg(**small, horizon=2, bins=64).build(visible(sim), sim.action_spec, transforms).eval()


@functools.cache
def observed() -> dict[str, Tensor]:
    return {key: flows.observed()[key] for key in policy_of("token").observation_spec}


def exported(policy: Any, path: Path) -> Path:
    recorded = {key: x.repeat(171, *[1] * (x.ndim - 1)).numpy() for key, x in observed().items()}
    export(policy, path, observations=recorded, control_dt_s=flows.tabletop().control_dt_s)
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(policy_of("token"), tmp_path_factory.mktemp("given") / "bundle")


# bad input


class Bad(NamedTuple):
    """One way in which an observation can be wrong, made on rows (B, ...); what a policy says, and what a bundle."""

    change: Callable[[Arrays], Arrays]
    policy: str
    bundle: str
    kind: type[Exception] = ConfigError


def other(key: str, value: Callable[[Tensor], Tensor]) -> Callable[[Arrays], Arrays]:
    return lambda obs: {**obs, key: value(obs[key])}


def without(key: str) -> Callable[[Arrays], Arrays]:
    return lambda obs: {name: x for name, x in obs.items() if name != key}


def renamed(key: str, name: str) -> Callable[[Arrays], Arrays]:
    return lambda obs: {**without(key)(obs), name: obs[key]}


def word(number: float) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        x = x.to(torch.float32 if number % 1 else x.dtype)
        x[-1, 1] = number
        return x

    return lambda x: change(x.clone())


def number(value: float) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        x[-1, 2] = value
        return x

    return lambda x: change(x.clone())


BYTES = "0 to 255 for each of r, g, b"
NUMBERS = f"expected whole numbers from 0 (none) to {LAST} ({VOCABULARY[-1]!r})"
BAD = {
    "a picture of numbers from 0 to 1": Bad(
        other(PICTURE, lambda x: x / 255),
        f"observation '{PICTURE}' is float32: expected uint8, {BYTES}",
        rf"observation '{PICTURE}' holds 0\.\d+: expected whole numbers, {BYTES}",
    ),
    "a picture from -1 to 1": Bad(
        other(PICTURE, lambda x: x.double() / 127.5 - 1),
        f"observation '{PICTURE}' is float64: expected uint8, {BYTES}",
        rf"observation '{PICTURE}' holds -\d.*: expected whole numbers, {BYTES}",
    ),
    "a picture of 64 pixels": Bad(
        other(PICTURE, lambda x: x.repeat(1, 2, 2, 1)),
        re.escape(f"observation '{PICTURE}' has shape ({ROWS}, 64, 64, 3): expected (B, 32, 32, 3)"),
        re.escape(f"observation '{PICTURE}' has shape (64, 64, 3): expected (32, 32, 3)"),
    ),
    "a picture with its channels in front": Bad(
        other(PICTURE, lambda x: x.permute(0, 3, 1, 2)),
        re.escape(f"has shape ({ROWS}, 3, 32, 32): expected (B, 32, 32, 3)"),
        re.escape("has shape (3, 32, 32): expected (32, 32, 3)"),
    ),
    "a narrower state": Bad(
        other("state", lambda x: x[:, :-3]),
        re.escape(f"observation 'state' has shape ({ROWS}, 16): expected (B, 19)"),
        re.escape("observation 'state' has shape (16,): expected (19,)"),
    ),
    "a wider state": Bad(
        other("state", lambda x: torch.cat([x, x[:, :1]], dim=1)),
        re.escape(f"observation 'state' has shape ({ROWS}, 20): expected (B, 19)"),
        re.escape("observation 'state' has shape (20,): expected (19,)"),
    ),
    "a state that is not finite": Bad(
        other("state", number(float("nan"))),
        f"observation 'state' element 'tip_pos_z_w' is nan in row {ROWS - 1}: expected it finite",
        "observation 'state' element 'tip_pos_z_w' is nan: expected it finite",
        NumericsError,
    ),
    "a negative word number": Bad(
        other("instruction", word(-1)),
        re.escape(f"observation 'instruction' holds word number -1: {NUMBERS}"),
        re.escape(f"observation 'instruction' holds word number -1: {NUMBERS}"),
    ),
    "the first number past the vocabulary": Bad(
        other("instruction", word(LAST + 1)),
        re.escape(f"observation 'instruction' holds word number {LAST + 1}: {NUMBERS}"),
        re.escape(f"observation 'instruction' holds word number {LAST + 1}: {NUMBERS}"),
    ),
    "word number 400": Bad(
        other("instruction", word(400)),
        re.escape(f"observation 'instruction' holds word number 400: {NUMBERS}"),
        re.escape(f"observation 'instruction' holds word number 400: {NUMBERS}"),
    ),
    "half a word": Bad(
        other("instruction", word(2.5)),
        re.escape(f"observation 'instruction' holds word number 2.5: {NUMBERS}"),
        re.escape(f"observation 'instruction' holds word number 2.5: {NUMBERS}"),
    ),
    "an instruction of no length": Bad(
        other("instruction", lambda x: x[:, :0]),
        re.escape(f"observation 'instruction' has shape ({ROWS}, 0): expected (B, {MAX_WORDS})"),
        re.escape(f"observation 'instruction' has shape (0,): expected ({MAX_WORDS},)"),
    ),
    "an instruction without a word": Bad(
        other("instruction", lambda x: torch.cat([x[:-1], 0 * x[-1:]])),
        f"observation 'instruction' says no word: expected 1 to {MAX_WORDS}",
        f"observation 'instruction' says no word: expected 1 to {MAX_WORDS}",
    ),
    "an instruction that is too long": Bad(
        other("instruction", lambda x: torch.cat([x, x], dim=1)),
        re.escape(f"observation 'instruction' has shape ({ROWS}, {2 * MAX_WORDS}): expected (B, {MAX_WORDS})"),
        re.escape(f"observation 'instruction' has shape ({2 * MAX_WORDS},): expected ({MAX_WORDS},)"),
    ),
    "a camera that is missing": Bad(
        without(PICTURE),
        f"observation '{PICTURE}' is missing: expected state, instruction, {PICTURE}",
        f"observation '{PICTURE}' is missing: expected {PICTURE}, instruction, state",
    ),
    "a camera with another name": Bad(
        renamed(PICTURE, "image_flat_neer"),
        f"observation '{PICTURE}' is missing: did you mean 'image_flat_neer'",
        f"observation 'image_flat_neer' is unknown: did you mean '{PICTURE}'",
    ),
}
POLICY_ONLY = {
    "one row less": Bad(
        other("instruction", lambda x: x[1:]),
        f"observation 'instruction' has {ROWS - 1} rows: expected {ROWS}, as 'state' has",
        "",
    ),
    "no batch axis": Bad(
        lambda obs: {key: x[0] for key, x in obs.items()},
        re.escape("observation 'state' has shape (19,): expected (B, 19)"),
        "",
    ),
    "a state in double precision": Bad(
        other("state", Tensor.double), "observation 'state' is float64: expected float32", ""
    ),
    "a state of whole numbers": Bad(
        other("state", Tensor.int), "observation 'state' is int32: expected float32", ""
    ),
    "words that are true or false": Bad(
        other("instruction", Tensor.bool), "observation 'instruction' is bool: expected int32, word numbers", ""
    ),
    "words of a type that torch only stores": Bad(
        other("instruction", lambda x: x.to(torch.uint16)),
        "observation 'instruction' is uint16: expected int32, word numbers",
        "",
    ),
    "an array of numpy": Bad(
        lambda obs: {**obs, "state": obs["state"].numpy()}, "observation 'state' is a ndarray: expected a tensor", ""
    ),
}  # fmt: skip


def one_line(error: pytest.ExceptionInfo[Exception]) -> None:
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [*BAD, *POLICY_ONLY])
def test_a_policy_refuses_bad_input_by_name(bad: str, kind: str) -> None:
    policy, case = policy_of(kind), (BAD | POLICY_ONLY)[bad]
    for mode in ("mean", "sample"):
        with pytest.raises(case.kind, match=case.policy) as error:
            policy.act(case.change(dict(observed())), mode=mode)
        one_line(error)


@pytest.mark.parametrize("bad", [*BAD, "text"])
def test_a_bundle_refuses_bad_input_by_name(bundle: Path, bad: str) -> None:
    texts = Bad(lambda obs: obs, "", "observation 'state' is <U1: expected numbers")
    case = BAD.get(bad, texts)
    controller = Controller.load(bundle)
    good = {key: x[-1].numpy() for key, x in observed().items()}
    wrong = {key: x[-1].numpy() for key, x in case.change(dict(observed())).items()}
    if bad == "text":
        wrong["state"] = np.full(19, "x")
    with pytest.raises(case.kind, match=case.bundle) as error:
        controller.step(wrong)
    one_line(error)
    # nothing was inferred, nothing of it is left for a warming inference, and the next good one is answered as ever
    assert controller.decision == -1
    controller.warm()
    assert controller.step(good).tolist() == Controller.load(bundle).step(good).tolist()


@pytest.mark.parametrize("network", ["smolvla", "pi0"])
def test_a_steered_policy_refuses_what_its_base_does(network: str) -> None:
    policy = SteeredCfg(hidden=(8,)).build(flows.policy_on(network))
    with pytest.raises(ConfigError, match="holds word number 400"):
        policy.act(BAD["word number 400"].change(dict(observed())))
    policy.act(observed())


@pytest.mark.parametrize("network", ["smolvla", "pi0"])
def test_a_state_is_padded_to_the_networks_width_and_never_cut(network: str) -> None:
    """What is inside a policy is held to its width without a look at numbers, in training and in a graph as well."""

    class Wider(flows.FlowVlaPolicy):
        def padded(self) -> tuple[int, int]:
            return self.state_width + 5, self.action_width

    plain = flows.policy_on(network)
    torch.manual_seed(0)
    padded = Wider(plain.observation_spec, plain.action_spec, plain.transforms, plain.cfg)
    obs = observed()
    for policy in (plain, padded):
        for width in (16, 20):
            state = torch.zeros(ROWS, width)
            with pytest.raises(ConfigError, match=f"observations state have {width} numbers: expected 19"):
                policy.encode({**obs, "state": state})
    assert padded.act(obs).chunk.shape == plain.act(obs).chunk.shape == (ROWS, 2, 5)


# good input


def plain_act(policy: Any, obs: dict[str, Tensor], seed: int, mode: Any) -> Tensor:
    """What `act` says, put together without it."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(policy, TokenPolicy):
        said = policy.sample_tokens(policy.encode(obs), generator, mode)
        return policy.to_actions(policy.from_tokens(said))
    assert isinstance(policy, FlowVla)
    return ChainPolicy.act(policy, obs, None, generator, mode).chunk


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["mean", "sample"])
@torch.no_grad()
def test_good_input_is_answered_bit_for_bit(kind: str, mode: Any) -> None:
    policy, obs = policy_of(kind), observed()
    expected = plain_act(policy, obs, 0, mode)
    # arrays that it does not see, word numbers of other types, one row
    for given in (
        obs,
        {**obs, "things": torch.zeros(2)},
        {**obs, "instruction": obs["instruction"].long()},
        {**obs, "instruction": obs["instruction"].float()},
    ):
        before = {key: x.clone() for key, x in given.items()}
        found = policy.act(given, generator=torch.Generator().manual_seed(0), mode=mode).chunk
        assert torch.equal(found, expected)
        assert all(torch.equal(x, before[key]) for key, x in given.items())
    one = {key: x[:1] for key, x in obs.items()}
    found = policy.act(one, generator=torch.Generator().manual_seed(0), mode=mode).chunk
    assert torch.equal(found, plain_act(policy, one, 0, mode))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_what_is_kept_stands_for_what_is_seen(kind: str) -> None:
    policy, obs = policy_of(kind), observed()
    expected = policy.act(obs, mode="mean").chunk
    cached = policy.cached(obs, "image-features")
    assert PICTURE not in cached and features_key(PICTURE) in cached
    assert torch.equal(policy.act(cached, mode="mean").chunk, expected)
    with pytest.raises(ConfigError, match="holds word number -1"):
        policy.act({**cached, "instruction": word(-1)(obs["instruction"])})
    if kind != "token":
        assert torch.equal(policy.act(policy.cached(obs, "context"), mode="mean").chunk, expected)


def test_a_bundle_answers_bytes_and_a_robots_numbers_alike(bundle: Path) -> None:
    """A link has float32 for all; what the graph computes of the plain numbers is what the controller says."""
    controller, opened = Controller.load(bundle), open_bundle(bundle)
    rows = {key: x.numpy() for key, x in observed().items()}
    single = {key: np.ascontiguousarray(x, np.float32) for key, x in rows.items()}
    empty = np.zeros((ROWS, 2, 5), np.float32)
    wanted = run_ticks(controller.session, GoldenTicks(single, None, empty, empty.copy()), opened.manifest).actions
    for row in range(ROWS):
        for given in (rows, single, {**rows, "instruction": rows["instruction"].astype(np.uint16)},
                      {**rows, "state": rows["state"].astype(np.float64)}):  # fmt: skip
            said = controller.infer({key: x[row] for key, x in given.items()}, 0)
            assert said.tobytes() == wanted[row].tobytes()
    lists = {key: x[0].tolist() for key, x in rows.items()}
    assert controller.infer(lists, 0).tobytes() == wanted[0].tobytes()
    assert opened.manifest.observations[1].words == VOCABULARY


# where nothing is looked at


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_graphs_and_training_are_left_alone(kind: str) -> None:
    """`deploy` takes what the exporter gives it; a traced `act` branches on no number; a device is not waited for."""
    policy, obs = policy_of(kind), observed()
    noise = None if policy.noise_shape is None else torch.zeros(ROWS, *policy.noise_shape)
    single = {key: x.float() for key, x in obs.items()}
    zeros = {key: torch.zeros_like(x) for key, x in single.items()}
    assert torch.equal(policy.deploy(single, noise).actions, policy.act(obs, mode="mean").chunk)
    assert policy.deploy(zeros, noise).actions.isfinite().all()
    # numbers on another device are not read: here there are none
    check_given({key: x.to("meta") for key, x in obs.items()}, policy.observation_spec)
    with pytest.raises(ConfigError, match="expected uint8"):
        check_given({key: x.to("meta") for key, x in single.items()}, policy.observation_spec)


class Checked(torch.nn.Module):
    def forward(self, state: Tensor, instruction: Tensor, picture: Tensor) -> Tensor:
        obs = {"state": state, "instruction": instruction, PICTURE: picture}
        check_given(obs, policy_of("token").observation_spec)
        return state + 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_a_traced_graph_has_no_trace_of_it() -> None:
    arrays = tuple(observed()[key] for key in ("state", "instruction", PICTURE))
    program = torch.export.export(Checked(), arrays)
    assert [node.op for node in program.graph.nodes].count("call_function") == 1
    traced = torch.jit.trace(Checked(), arrays)
    bad = (arrays[0], arrays[1] - 9, arrays[2])
    assert torch.equal(traced(*bad), arrays[0] + 1)


# the manifest says what the numbers are


def test_a_manifest_says_what_a_robots_numbers_are_and_old_ones_are_read(bundle: Path, tmp_path: Path) -> None:
    manifest = open_bundle(bundle).manifest
    specs = policy_of("token").observation_spec
    assert {port.name: port.spec for port in manifest.observations} == specs
    ports = {port["name"]: port for port in manifest.to_json()["io"]["inputs"]}
    assert "words" not in ports["state"] and "source_dtype" not in ports["state"]
    assert (ports[PICTURE]["source_dtype"], ports["instruction"]["words"]) == ("uint8", list(VOCABULARY))
    # one of before says nothing of it: such input is checked as it was
    data = manifest.to_json()
    for port in data["io"]["inputs"]:
        port.pop("words", None), port.pop("source_dtype", None)
    old = tmp_path / "old"
    old.mkdir()
    for file in bundle.iterdir():
        (old / file.name).write_bytes(file.read_bytes())
    seal(old, data)
    read = schema.parse((old / schema.MANIFEST_FILE).read_bytes())
    assert read.bundle_id == schema.identity(strict.from_json(schema.Manifest, data, "manifest")) != manifest.bundle_id
    good = {key: x[0].numpy() for key, x in observed().items()}
    assert Controller.load(old).step(good).tolist() == Controller.load(bundle).step(good).tolist()
    Controller.load(old).step({**good, PICTURE: good[PICTURE] / 255})
    for field, value, says in (
        ("source_dtype", "text", "source_dtype is 'text': expected a type of numbers"),
        ("words", [""], "words is .*: expected one word or more besides the empty one"),
    ):
        data["io"]["inputs"][0][field] = value
        with pytest.raises(Exception, match=says):
            seal(old, data)
        del data["io"]["inputs"][0][field]


def test_a_robot_that_means_other_words_is_refused(bundle: Path) -> None:
    manifest, sim = open_bundle(bundle).manifest, flows.tabletop()
    specs: dict[str, Spec] = {key: sim.observation_spec[key] for key in policy_of("token").observation_spec}

    def robot(**changes: Spec) -> RobotInfo:
        return RobotInfo({**specs, **changes}, sim.action_spec, sim.control_dt_s, 0.01, None, range(0))

    wire(manifest, robot())
    words = replace(specs["instruction"], words=("", *VOCABULARY[:0:-1]))
    with pytest.raises(
        ConfigError, match=f"of the robot has {VOCABULARY[-1]!r} as word 1: the bundle was trained with"
    ):
        wire(manifest, robot(instruction=words))
    with pytest.raises(
        ConfigError, match=f"'{PICTURE}' of the robot is float32 numbers: the bundle expects an image of uint8"
    ):
        wire(manifest, robot(**{PICTURE: replace(specs[PICTURE], dtype="float32")}))
    # channels have names: a driver that has them the other way round and says so is turned round
    turned = replace(specs[PICTURE], names=("b", "g", "r"))
    assert wire(manifest, robot(**{PICTURE: turned})).cameras[PICTURE].tolist() == [2, 1, 0]


def test_bounds_of_measured_numbers_are_not_limits() -> None:
    spec = Spec((2,), ("a", "b"), ("m", "m"), (-1.0, 0.0), (1.0, 0.0))
    for array in (np.full(2, 9.0, np.float32), torch.full((2,), -9.0)):
        assert misfit("x", array, spec) == ""
        assert misfit("x", array[None], spec, batched=True) == ""
        assert "has shape (2,): expected (B, 2)" in misfit("x", array, spec, batched=True)


def test_a_bundle_is_not_evaluated_where_numbers_mean_other_words(bundle: Path, tmp_path: Path) -> None:
    policy, sim = policy_of("token"), flows.tabletop(1)
    turned = fit.reversed_words(policy).eval()
    actor_of(bundle, sim, 0)
    with pytest.raises(ConfigError, match=f"with {VOCABULARY[-1]!r} as word 1: sim TabletopSim has {VOCABULARY[1]!r}"):
        actor_of(exported(turned, tmp_path / "turned"), sim, 0)
