"""lerobot's and openpi's directories: toy models in the published layouts are read whole, and refused when off."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch import Tensor

import robotrl
from robotrl.errors import ConfigError, DataError, RobotrlError
from robotrl.importers import pi0
from robotrl.importers.fitting import from_stats
from robotrl.importers.lerobot import load_lerobot
from robotrl.importers.openpi import load_openpi
from robotrl.importers.pi0 import EMBEDDING, HEAD, PREFIXES, UNUSED, from_openpi
from robotrl.policies.vla.networks.pi0 import Pi0, Pi0Cfg
from robotrl.policies.vla.networks.smolvla import SmolVla, SmolVlaCfg
from robotrl.policies.vla.pretrained_flow import PretrainedFlow
from robotrl.policies.vla.resize import resize_with_pad
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from robotrl.sims.mujoco.tabletop.language import InstructionFamily, compositions, encode
from robotrl.spec import HasChain, HasDecode, visible
from tests.kits.refusals import raises_naming
from tests.policies.vla.test_flow import published

ROWS = 320
"""Of the toy embeddings."""
SHARED: dict[str, Any] = {
    "width": 32,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_width": 8,
    "mlp": 48,
    "vocabulary": ROWS,
    "vision_width": 24,
    "vision_layers": 2,
    "vision_heads": 2,
    "vision_mlp": 48,
    "patch": 8,
    "image": 32,
    "state": 24,
    "action": 8,
}
SMOLVLA = SmolVlaCfg(**SHARED, shuffle=2)
PI0 = Pi0Cfg(**SHARED, expert_width=24, expert_mlp=40, chunk=6)
NUMBERS = np.random.default_rng(0)
STATE = {"mean": NUMBERS.normal(size=19), "std": NUMBERS.uniform(0.5, 2, 19)}
ACTION = {"mean": NUMBERS.normal(size=5) / 10, "std": NUMBERS.uniform(0.1, 0.3, 5)}
SAID = [one.say(way) for family in InstructionFamily for one in compositions(family) for way in range(2)]


def tokenizer(bos: bool, size: int = ROWS) -> Tokenizer:
    """Byte pairs with the space in front of a word, but for the first one: as SmolLM, or, with a beginning, Gemma."""
    made: Any = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<bos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([f"{text}\n" for text in SAID], trainer)
    if bos:
        made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    return made


def bigger() -> Tokenizer:
    """Three tokens more than the embedding has rows."""
    made = tokenizer(bos=False)
    made.add_tokens([f"<more{i}>" for i in range(ROWS + 3 - made.get_vocab_size())])
    return made


def processor(path: Path, name: str, steps: list[tuple[str, dict[str, Any]]], stats: dict[str, Any]) -> None:
    out: list[dict[str, Any]] = []
    for index, (step, config) in enumerate(steps):
        row: dict[str, Any] = {"registry_name": step, "config": config}
        if "normalizer" in step:
            row["state_file"] = f"{name}_step_{index}_{step}.safetensors"
            flat = {
                f"{key}.{stat}": torch.tensor(value, dtype=torch.float32)
                for key, values in stats.items()
                for stat, value in values.items()
            }
            save_file(flat, path / row["state_file"])
        out.append(row)
    (path / f"{name}.json").write_text(json.dumps({"name": name, "steps": out}))


def write_lerobot(path: Path, kind: str) -> Any:
    """A toy model's directory, and "vlm" beside it; gives the network."""
    torch.manual_seed(0)
    net: Any = SmolVla(SMOLVLA) if kind == "smolvla" else Pi0(PI0)
    for parameter in net.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    path.mkdir(parents=True)
    (path / "vlm").mkdir()
    weights = net.state_dict() if kind == "smolvla" else to_openpi(net)
    save_file({f"model.{name}": x.contiguous() for name, x in weights.items()}, path / "model.safetensors")
    modes = {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
    inputs = {
        "observation.images.top": {"type": "VISUAL", "shape": [3, 32, 32]},
        "observation.state": {"type": "STATE", "shape": [19]},
        "observation.images.wrist": {"type": "VISUAL", "shape": [3, 32, 32]},
    }
    outputs = {"action": {"type": "ACTION", "shape": [5]}}
    config: dict[str, Any] = {
        "type": kind,
        "n_obs_steps": 1,
        "chunk_size": 6,
        "n_action_steps": 3,
        "max_state_dim": 24,
        "max_action_dim": 8,
        "input_features": inputs,
        "output_features": outputs,
        "normalization_mapping": modes,
        "empty_cameras": 0,
    }
    if kind == "smolvla":
        config |= {
            "num_steps": 4,
            "num_vlm_layers": 2,
            "num_expert_layers": -1,
            "resize_imgs_with_padding": [32, 32],
            "vlm_model_name": "somebody/SmolVLM2-Toy",
            "expert_width_multiplier": 0.75,
            "self_attn_every_n_layers": 2,
            "attention_mode": "cross_attn",
        }
        vlm = {
            "text_config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 9,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "vocab_size": ROWS,
                "rms_norm_eps": 1e-5,
            },
            "vision_config": {
                "hidden_size": 24,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 32,
                "patch_size": 8,
            },
            "scale_factor": 2,
        }
        (path / "vlm" / "config.json").write_text(json.dumps(vlm))
    else:
        config |= {"num_inference_steps": 4, "paligemma_variant": "toy", "action_expert_variant": "toy"}
    tokenizer(bos=kind == "pi0").save(str(path / "vlm" / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps(config))
    norm = {"eps": 1e-8, "features": {**inputs, **outputs}, "norm_map": modes}
    stats = {"observation.state": STATE, "action": ACTION, "timestamp": {"mean": [1.0]}}
    before = [
        ("rename_observations_processor", {"rename_map": {}}),
        ("to_batch_processor", {}),
        (f"{kind}_new_line_processor", {}),
        (
            "tokenizer_processor",
            {
                "max_length": 48,
                "task_key": "task",
                "padding_side": "right",
                "padding": "longest" if kind == "smolvla" else "max_length",
                "truncation": True,
                "tokenizer_name": "somebody/SmolVLM2-Toy",
            },
        ),
        ("device_processor", {"device": "cuda", "float_dtype": None}),
        ("normalizer_processor", norm),
    ]
    after = [
        ("unnormalizer_processor", norm | {"features": outputs}),
        ("device_processor", {"device": "cpu", "float_dtype": None}),
    ]
    processor(path, "policy_preprocessor", before, stats)
    processor(path, "policy_postprocessor", after, stats)
    return net


def to_openpi(net: Any, head: bool = True) -> dict[str, Tensor]:
    """A pi0's weights by openpi's names, as safetensors keep them: of tied tensors one."""
    back = {ours: theirs for theirs, ours in PREFIXES.items()}
    out: dict[str, Tensor] = {}
    for name, value in net.net.state_dict().items():
        prefix = max((prefix for prefix in back if name.startswith(prefix)), key=len)
        theirs = HEAD if head and name == EMBEDDING else back[prefix] + name.removeprefix(prefix)
        out[theirs] = value
    out[UNUSED] = torch.zeros(ROWS, PI0.expert_width)
    return out


def write_openpi(path: Path) -> Any:
    torch.manual_seed(0)
    net = Pi0(replace(PI0, state=24, action=24))
    path.mkdir(parents=True)
    save_file({name: x.contiguous() for name, x in to_openpi(net, head=False).items()}, path / "model.safetensors")
    config = {
        "action_dim": 24,
        "action_horizon": 6,
        "paligemma_variant": "toy",
        "action_expert_variant": "toy",
        "precision": "float32",
    }
    (path / "config.json").write_text(json.dumps(config))
    for key, shift in (("bridge", 0.0), ("droid", 1.0)):
        (path / "assets" / key).mkdir(parents=True)
        # openpi's own may be padded
        stats = {
            "state": {"mean": [*(STATE["mean"] + shift), 0.0], "std": [*STATE["std"], 0.0], "q01": None, "q99": None},
            "actions": {"mean": [*ACTION["mean"], 0.0], "std": [*ACTION["std"], 0.0], "q01": None, "q99": None},
        }
        (path / "assets" / key / "norm_stats.json").write_text(json.dumps({"norm_stats": stats}))
    (path / "vlm").mkdir()
    tokenizer(bos=True).save(str(path / "vlm" / "tokenizer.json"))
    return net


@pytest.fixture(autouse=True)
def toys_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pi0.SIZES, ("toy", "toy"), PI0)


@pytest.fixture(scope="module")
def sim() -> Any:
    return robotrl.make_sim("mujoco/tabletop", num_envs=4, seed=0, image="flat_near", image_size=48, families="point")


@pytest.fixture(scope="module", params=["smolvla", "pi0"])
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    path = tmp_path_factory.mktemp("vla") / request.param
    return request.param, path, write_lerobot(path, request.param)


CAMERAS = {"observation.images.top": "image_flat_near", "observation.images.wrist": ""}


def loaded(path: Path, sim: Any, **changes: Any) -> PretrainedFlow:
    specs = visible(sim)
    settings: dict[str, Any] = {"vlm": path / "vlm", "cameras": CAMERAS, **changes}
    return load_lerobot(
        path, {k: specs[k] for k in ("image_flat_near", "instruction", "state")}, sim.action_spec, **settings
    )


# whole


def test_a_directory_is_read_whole(toy: tuple[str, Path, Any], sim: Any) -> None:
    """What is executed is what the network says of the normalised state, the prompt and the fitted picture."""
    kind, path, net = toy
    policy = loaded(path, sim)
    assert isinstance(policy, HasChain) and isinstance(policy, HasDecode) and policy.kind == kind
    assert (policy.horizon, policy.noise_shape, policy.denoising_steps) == (3, (6, 8), 4)
    assert all(torch.equal(a, b) for a, b in zip(policy.net.parameters(), net.parameters(), strict=True))
    obs = {key: value for key, value in sim.reset(0).items() if key in policy.observation_spec}
    noise = torch.randn(4, 6, 8)
    state = (obs["state"] - torch.tensor(STATE["mean"])) / torch.tensor(STATE["std"])
    ids = [tokenizer(kind == "pi0").encode(f"{text}\n").ids for text in sim.instructions()]
    token_mask = torch.zeros(4, max(map(len, ids)), dtype=torch.bool)
    padded = torch.zeros(token_mask.shape, dtype=torch.int64)
    for row, some in enumerate(ids):
        padded[row, : len(some)], token_mask[row, : len(some)] = torch.tensor(some), True
    with torch.no_grad():
        picture = resize_with_pad(obs["image_flat_near"], 32, centered=kind == "pi0")
        memory = net.encode_context(
            [net.encode_images(picture), None], padded, token_mask, torch.nn.functional.pad(state.float(), (0, 5))
        )
        x = noise
        for k in range(4):
            x = x + 0.25 * net.velocity(memory, x, torch.full((4,), k / 4))
        found = policy.deploy(obs, noise).actions
    wanted = x[:, :3, :5] * torch.tensor(ACTION["std"]) + torch.tensor(ACTION["mean"])
    low, high = (torch.tensor(bound) for bound in (sim.action_spec.low, sim.action_spec.high))
    assert torch.allclose(found, wanted.clamp(low, high).float(), atol=1e-5)
    again = policy_from_tree(policy_tree(policy), "here")
    assert torch.equal(again.deploy(obs, noise).actions, found)


def test_prompts_are_those_of_the_tokenizer(toy: tuple[str, Path, Any], sim: Any) -> None:
    """The first word has no space before it; every sentence comes out as the tokenizer has it."""
    kind, path, _ = toy
    prompt, plain = loaded(path, sim).prompt, tokenizer(kind == "pi0")
    for text in SAID[::11]:
        out = prompt(torch.from_numpy(encode(text))[None])
        assert out.ids[0][out.token_mask[0]].tolist() == plain.encode(f"{text}\n").ids


def read_openpi(path: Path, sim: Any, **changes: Any) -> Any:
    specs = {key: visible(sim)[key] for key in ("image_flat_near", "instruction", "state")}
    settings: dict[str, Any] = {
        "tokenizer": path / "vlm",
        "cameras": {"base_0_rgb": "image_flat_near", "left_wrist_0_rgb": "", "right_wrist_0_rgb": ""},
        "key": "bridge",
        **changes,
    }
    return load_openpi(path, specs, sim.action_spec, **settings)


def test_openpis_directories_are_read_whole(tmp_path: Path, sim: Any) -> None:
    net = write_openpi(tmp_path / "pi0")

    def read(**changes: Any) -> Any:
        return read_openpi(tmp_path / "pi0", sim, **changes)

    policy = read()
    assert all(torch.equal(a, b) for a, b in zip(policy.net.parameters(), net.parameters(), strict=True))
    assert policy.noise_shape == (6, 24) and policy.horizon == 6 and read(horizon=2).horizon == 2
    scale, offset = policy.transforms.inputs[0].constants
    assert scale == pytest.approx(1 / (STATE["std"] + 1e-6)) and offset == pytest.approx(
        -STATE["mean"] / STATE["std"], abs=1e-5
    )
    assert read(key="droid").transforms != policy.transforms
    with pytest.raises(ConfigError, match=r"key is not given: expected one of bridge, droid"):
        read(key=None)
    with raises_naming(ConfigError, "key", "bridges", nearest="bridge"):
        read(key="bridges")
    with pytest.raises(ConfigError, match=r"cameras lack 'left_wrist_0_rgb'"):
        read(cameras={"base_0_rgb": "image_flat_near"})


def test_other_directories_that_lerobot_writes_are_read(toy: tuple[str, Path, Any], sim: Any, tmp_path: Path) -> None:
    """That of before 0.4 with the other order behind the policy; ranges; nothing normalised, without statistics."""
    _, path, _ = toy
    plain = loaded(path, sim)
    older = tmp_path / "older"
    shutil.copytree(path, older)
    edit(AFTER, lambda d: d["steps"].reverse())(older)
    assert loaded(older, sim).transforms == plain.transforms
    ranges = tmp_path / "ranges"
    shutil.copytree(path, ranges)
    normalized("QUANTILES")(ranges)
    q01, q99 = torch.full((5,), -0.5), torch.full((5,), 1.5)
    for name in (NORM, UNNORM):
        rewrite(name, lambda w: w.update({"action.q01": q01, "action.q99": q99}))(ranges)
    scale, offset = loaded(ranges, sim).transforms.outputs[0].constants
    assert (scale, offset) == ((1.0,) * 5, (0.5,) * 5)
    bare = tmp_path / "bare"
    shutil.copytree(path, bare)
    normalized("IDENTITY")(bare)
    edit("config.json", lambda d: d["normalization_mapping"].pop("STATE"))(bare)
    for name, at in ((BEFORE, 5), (AFTER, 0)):
        edit(name, at_step(at, "norm_map", "STATE", "IDENTITY"))(bare)
        edit(name, lambda d, at=at: d["steps"][at].pop("state_file"))(bare)
    assert loaded(bare, sim).transforms.inputs[0].constants == ((1.0,) * 19, (0.0,) * 19)


def test_a_deviation_is_the_same_on_the_way_back(toy: tuple[str, Path, Any], sim: Any, tmp_path: Path) -> None:
    """In front of the policy lerobot adds its eps to deviations, behind it it does not."""
    path = tmp_path / "eps"
    shutil.copytree(toy[1], path)
    for name, at in ((BEFORE, 5), (AFTER, 0)):
        edit(name, lambda d, at=at: d["steps"][at]["config"].update(eps=0.5))(path)
    transforms = loaded(path, sim).transforms
    assert transforms.inputs[0].constants[0] == pytest.approx(1 / (STATE["std"] + 0.5))
    assert transforms.outputs[0].constants[0] == pytest.approx(ACTION["std"])


def test_at_full_size_the_names_of_pi0_are_lerobots() -> None:
    """But for the two heads that say words: one is the embedding, the other is not used."""
    with torch.device("meta"):
        net = Pi0(Pi0Cfg())
    theirs = {name: torch.empty(shape, device="meta") for name, shape in published("pi0").items() if name != HEAD}
    ours = {name: tuple(x.shape) for name, x in net.net.state_dict().items()}
    assert {name: tuple(x.shape) for name, x in from_openpi(theirs, "pi0").items()} == ours
    assert published("pi0")[HEAD] == ours[EMBEDDING]


# arithmetic


def test_statistics_by_hand() -> None:
    stats = {"mean": [1.0], "std": [2.0], "min": [0.0], "max": [4.0], "q01": [1.0], "q99": [3.0]}
    made = {mode: from_stats("x", stats, mode, 1, 0.0, "here") for mode in ("MEAN_STD", "MIN_MAX", "QUANTILES")}
    assert {mode: 3.0 * t.scale[0] + t.offset[0] for mode, t in made.items()} == {
        "MEAN_STD": 1.0,
        "MIN_MAX": 0.5,
        "QUANTILES": 1.0,
    }
    flat = from_stats("x", {"min": [2.0], "max": [2.0]}, "MIN_MAX", 1, 0.5, "here")
    assert 2.0 * flat.scale[0] + flat.offset[0] == -1.0


def test_pictures_are_fitted_with_black_beside_them() -> None:
    picture = torch.full((1, 4, 8, 3), 200, dtype=torch.uint8)
    left, both = (resize_with_pad(picture, 4, centered)[0, :, :, 0] for centered in (False, True))
    assert left.tolist() == [[0.0] * 4] * 2 + [[200.0] * 4] * 2
    assert both.tolist() == [[0.0] * 4] + [[200.0] * 4] * 2 + [[0.0] * 4]
    square = torch.randint(0, 256, (2, 4, 4, 3), dtype=torch.uint8)
    assert resize_with_pad(square, 4, True) is square
    grown = resize_with_pad(square, 8, True)
    wanted = torch.nn.functional.interpolate(square.permute(0, 3, 1, 2).float(), scale_factor=2, mode="bilinear")
    assert torch.allclose(grown, wanted.permute(0, 2, 3, 1))


# refusals


def edit(name: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        data = json.loads((path / name).read_text())
        change(data)
        (path / name).write_text(json.dumps(data))

    return apply


def rewrite(name: str, change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        weights = load_file(path / name)
        change(weights)
        save_file(weights, path / name)

    return apply


def step(index: int, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["steps"][index].update(fields)


def setting(index: int, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["steps"][index]["config"].update(fields)


def at_step(index: int, field: str, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["steps"][index]["config"][field].update({key: value})


def normalized(mode: str) -> Callable[[Path], None]:
    """Actions by another mode, in all three files."""

    def apply(path: Path) -> None:
        edit("config.json", lambda d: d["normalization_mapping"].update(ACTION=mode))(path)
        edit(BEFORE, at_step(5, "norm_map", "ACTION", mode))(path)
        edit(AFTER, at_step(0, "norm_map", "ACTION", mode))(path)

    return apply


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        for change in changes:
            change(path)

    return apply


def actions(**statistics: list[float]) -> Callable[[Path], None]:
    """Statistics of the action, before the policy and behind it."""
    tensors = {f"action.{name}": torch.tensor(row) for name, row in statistics.items()}
    return both(*(rewrite(name, lambda w: w.update(tensors)) for name in (NORM, UNNORM)))


def twice(name: str, other: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda weights: weights.update({other: weights[name] * 0 - 1})


def settled(name: str, value: Any) -> Callable[[Path], None]:
    return edit("config.json", lambda d: d.update({name: value}))


def feature(**fields: Any) -> Callable[[Path], None]:
    return edit("config.json", lambda d: d["input_features"]["observation.state"].update(fields))


HEADLESS = "model.action_out_proj.weight"
NORM = "policy_preprocessor_step_5_normalizer_processor.safetensors"
UNNORM = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"
FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (lambda path: (path / "config.json").unlink(), r"config\.json cannot be read"),
    "another model": (
        edit("config.json", lambda d: d.update(type="pi05")),
        r"type 'pi05' is unknown: did you mean 'pi0'",
    ),
    "a history": (edit("config.json", lambda d: d.update(n_obs_steps=2)), r"n_obs_steps is 2: expected 1"),
    "no pictures": (
        edit("config.json", lambda d: [d["input_features"].pop(k) for k in CAMERAS]),
        r"features are observation\.state, action: expected pictures",
    ),
    "normalised pictures": (
        edit("config.json", lambda d: d["normalization_mapping"].update(VISUAL="MEAN_STD")),
        r"VISUAL is 'MEAN_STD': expected IDENTITY",
    ),
    "older layout": (lambda path: (path / "policy_preprocessor.json").unlink(), r"no policy_preprocessor\.json"),
    "an unknown step": (
        edit("policy_preprocessor.json", step(1, registry_name="delta_actions_processor")),
        r"step 'delta_actions_processor' is unknown",
    ),
    "renamed features": (
        edit("policy_preprocessor.json", step(0, config={"rename_map": {"a": "b"}})),
        r"rename_map is not empty",
    ),
    "modes that differ": (
        edit("config.json", lambda d: d["normalization_mapping"].update(STATE="QUANTILES")),
        r"normalises STATE by 'MEAN_STD': expected 'QUANTILES'",
    ),
    "statistics that are not there": (
        rewrite(NORM, lambda w: w.pop("observation.state.std")),
        r"statistics of observation\.state lack 'std'",
    ),
    "statistics of another robot": (
        rewrite(NORM, lambda w: w.update({"observation.state.mean": torch.zeros(7)})),
        r"mean has 7 numbers: expected 19",
    ),
    "statistics that are no numbers": (
        rewrite(NORM, lambda w: w["observation.state.mean"].fill_(torch.nan)),
        r"observation\.state: mean of column 0 is nan: expected a finite number",
    ),
    "no mode in the config": (
        edit("config.json", lambda d: d["normalization_mapping"].pop("STATE")),
        r"step 5, normalizer_processor normalises STATE by 'MEAN_STD': expected 'IDENTITY', as config\.json says",
    ),
    "another mode behind the policy": (
        edit(AFTER, at_step(0, "norm_map", "ACTION", "IDENTITY")),
        r"unnormalizer_processor normalises ACTION by 'IDENTITY': expected 'MEAN_STD'",
    ),
    "pictures normalised by the processor": (
        edit(BEFORE, at_step(5, "norm_map", "VISUAL", "MEAN_STD")),
        r"normalises VISUAL by 'MEAN_STD': expected 'IDENTITY'",
    ),
    "a mode that is none": (normalized("MEDIAN"), r"statistics of action: mode 'MEDIAN' is unknown"),
    "keys without the state": (
        edit(BEFORE, setting(5, normalize_observation_keys=["observation.images.top"])),
        r"normalize_observation_keys is \['observation\.images\.top'\]: expected observation\.state among them",
    ),
    "features without the state": (
        edit(BEFORE, lambda d: d["steps"][5]["config"]["features"].pop("observation.state")),
        r"normalizer_processor: features lack 'observation\.state'",
    ),
    "features without the action": (edit(AFTER, setting(0, features={})), r"features lack 'action'"),
    "a state of another width": (
        edit(BEFORE, at_step(5, "features", "observation.state", {"type": "STATE", "shape": [7]})),
        r"observation\.state is STATE \(7,\): expected STATE \(19,\)",
    ),
    "a picture that is normalised as a state": (
        edit(BEFORE, at_step(5, "features", "observation.images.top", {"type": "STATE", "shape": [3, 32, 32]})),
        r"observation\.images\.top is STATE .*: expected VISUAL",
    ),
    "two normalisers": (
        edit(BEFORE, lambda d: d["steps"].append(d["steps"][5])),
        r"steps are .*, normalizer_processor, normalizer_processor: expected",
    ),
    "no new line": (edit(BEFORE, lambda d: d["steps"].pop(2)), r"steps are .*: expected .*_new_line_processor"),
    "no tokenizer step": (edit(BEFORE, lambda d: d["steps"].pop(3)), r"steps are .*: expected .*tokenizer_processor"),
    "no unnormaliser": (edit(AFTER, lambda d: d["steps"].pop(0)), r"steps are device_processor: expected unnorm"),
    "prompts cut sooner": (
        edit(BEFORE, setting(3, max_length=4)),
        r"max_length is 4: expected 48, as .*config\.json says \(tokenizer_max_length\)",
    ),
    "prompts filled up in front": (
        edit(BEFORE, setting(3, padding_side="left")),
        r"padding_side is 'left': expected 'right'",
    ),
    "another text than the task": (edit(BEFORE, setting(3, task_key="subtask")), r"task_key is 'subtask': expected"),
    "coarser numbers": (edit(BEFORE, setting(4, float_dtype="float16")), r"float_dtype is 'float16': expected None"),
    "a setting that is not known": (
        edit(BEFORE, setting(5, clip=3.0)),
        r"step 5, normalizer_processor: field 'clip' is unknown: .*known: eps, features, norm_map",
    ),
    "a step with state that has none": (
        edit(BEFORE, step(1, state_file="x.safetensors")),
        r"to_batch_processor: field 'state_file' is unknown",
    ),
    "deviations below 0": (
        actions(std=[0.1, 0.1, -0.2, 0.1, 0.1]),
        r"statistics of action: std of column 2 is -0\.2\d*: expected 0 or more",
    ),
    "an action that never moves": (
        actions(std=[0.1, 0.1, 0.1, 0.0, 0.1]),
        r"statistics of action: std of column 3 is 0\.0: expected more than 0",
    ),
    "a range the wrong way round": (
        both(normalized("MIN_MAX"), actions(min=[0.5] * 5, max=[1.0, 0.25, 1.0, 1.0, 1.0])),
        r"statistics of action: max of column 1 is 0\.25: expected min or more, 0\.5",
    ),
    "quantiles the wrong way round": (
        both(normalized("QUANTILES"), actions(q01=[0.5] * 5, q99=[1.0, 1.0, 1.0, 1.0, 0.25])),
        r"statistics of action: q99 of column 4 is 0\.25: expected q01 or more, 0\.5",
    ),
    "a range of nothing": (
        both(normalized("MIN_MAX"), actions(min=[0.5] * 5, max=[0.5] * 5)),
        r"statistics of action: max of column 0 is 0\.5: expected more than min",
    ),
    "an infinite range": (
        both(normalized("MIN_MAX"), actions(min=[0.5] * 5, max=[torch.inf] * 5)),
        r"statistics of action: max of column 0 is inf: expected a finite number",
    ),
    "a statistic that is no row": (
        rewrite(UNNORM, lambda w: w.update({"action.std": torch.tensor(0.5)})),
        r"statistics of action: std is 0\.5: expected a list of 5 numbers",
    ),
    "actions of another dataset behind the policy": (
        rewrite(UNNORM, lambda w: w["action.mean"].add_(0.25)),
        rf"{AFTER}: step 0, .*: mean of column 0 is .*: expected .*, as {BEFORE} has",
    ),
    "statistics in one of the two": (
        rewrite(UNNORM, lambda w: w.update({"action.q01": torch.zeros(5)})),
        rf"{BEFORE}: step 5, .*: statistics of action lack 'q01'",
    ),
    "an adapter beside": (
        lambda path: (path / "adapter_config.json").write_text("{}"),
        r"adapter_config\.json is of an adapter, .*: expected one network; merge the adapter into the base first",
    ),
    "an adapter's weights beside": (
        lambda path: save_file({"x": torch.ones(1)}, path / "adapter_model.safetensors"),
        r"adapter_model\.safetensors is of an adapter",
    ),
    "an adapter asked for": (settled("use_peft", True), r"config\.json: use_peft is True: expected False"),
    "a weight twice": (
        rewrite("model.safetensors", twice("model.action_out_proj.weight", "action_out_proj.weight")),
        r"has action_out_proj\.weight and model\.action_out_proj\.weight: expected one of them",
    ),
    "a robot's own angles": (settled("adapt_to_pi_aloha", True), r"adapt_to_pi_aloha is True: expected False"),
    "differences from the state": (
        settled("use_delta_joint_actions_aloha", True),
        r"use_delta_joint_actions_aloha is True: expected False",
    ),
    "no type": (settled("type", None), r"config\.json: type is None: expected a text"),
    "a feature that is none": (
        edit("config.json", lambda d: d["input_features"].update(x=None)),
        r"config\.json: input_features: x is None: expected an object",
    ),
    "a feature without a shape": (feature(shape=[]), r"observation\.state: shape is \[\]: expected whole numbers"),
    "a feature whose shape is none": (feature(shape=None), r"observation\.state: shape is None: expected a list"),
    "a state that is a table": (
        feature(shape=[19, 2]),
        r"observation\.state is STATE \(19, 2\): expected STATE of one",
    ),
    "a state of another type": (feature(type="ENV"), r"observation\.state is ENV \(19,\): expected STATE"),
    "modes that are none": (settled("normalization_mapping", None), r"normalization_mapping is None: expected an obj"),
    "a step that is none": (edit(BEFORE, lambda d: d["steps"].insert(0, "x")), r"step 0 is 'x': expected an object"),
    "steps that are none": (edit(AFTER, lambda d: d.update(steps=None)), rf"{AFTER}: steps is None: expected a list"),
    "a step without settings": (
        edit(BEFORE, step(0, config=None)),
        r"step 0, rename_observations_processor: config is None: expected an object",
    ),
    "no file of statistics": (
        edit(BEFORE, lambda d: d["steps"][5].pop("state_file")),
        r"step 5, normalizer_processor: state_file is missing: expected a text",
    ),
    "an eps that is none": (edit(BEFORE, setting(5, eps=None)), r"eps is None: expected a number above 0"),
    "no chunk": (edit("config.json", lambda d: d.pop("chunk_size")), r"config\.json: chunk_size is missing"),
    "a chunk that is no number": (settled("chunk_size", True), r"chunk_size is True: expected a whole number"),
    "no horizon": (settled("n_action_steps", None), r"n_action_steps is None: expected a whole number"),
    "a width that is no number": (settled("max_state_dim", "24"), r"max_state_dim is '24': expected a whole number"),
    "a period of 0": (settled("min_period", 0), r"min_period is 0: expected a number above 0"),
    "cameras made of nothing": (settled("empty_cameras", 1), r"empty_cameras is 1: expected 0"),
    "a missing weight": (
        rewrite("model.safetensors", lambda w: w.pop(HEADLESS)),
        r"lacks weights: .*action_out_proj\.weight",
    ),
    "a weight too many": (rewrite("model.safetensors", lambda w: w.update(more=torch.zeros(1))), r"unknown weight"),
    "a weight of another shape": (
        rewrite("model.safetensors", lambda w: w.update({HEADLESS: torch.zeros(9, 24)})),
        r"action_out_proj\.weight' has shape \(9, 24\): expected \(8, 24\)",
    ),
    "weights cut short": (
        lambda path: (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:900]),
        r"model\.safetensors cannot be read",
    ),
    "another tokenizer": (
        lambda path: bigger().save(str(path / "vlm" / "tokenizer.json")),
        r"has 32\d tokens: expected 320, the embedding's rows",
    ),
    "no tokenizer": (lambda path: (path / "vlm" / "tokenizer.json").unlink(), r"tokenizer\.json cannot be read"),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_what_is_off_is_refused_by_name(toy: tuple[str, Path, Any], sim: Any, fault: str, tmp_path: Path) -> None:
    _, path, _ = toy
    broken = tmp_path / "broken"
    shutil.copytree(path, broken)
    change, words = FAULTS[fault]
    change(broken)
    with pytest.raises(DataError, match=words):
        loaded(broken, sim)


def vlm(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    return edit("vlm/config.json", change)


def special(text: str) -> Callable[[Path], None]:
    """A tokenizer that puts something around a text, or nothing."""

    def apply(path: Path) -> None:
        made = Tokenizer.from_file(str(path / "vlm" / "tokenizer.json"))
        made.post_processor = processors.TemplateProcessing(single=text, special_tokens=[("<bos>", 0)])
        made.save(str(path / "vlm" / "tokenizer.json"))

    return apply


VISION = "model.paligemma_with_expert.paligemma.model.vision_tower."
PATCH = "embeddings.patch_embedding.bias"
OF_ONE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "pictures of any size": (
        "smolvla",
        settled("resize_imgs_with_padding", None),
        r"with_padding is None: expected \[",
    ),
    "pictures of another size": ("pi0", settled("image_resolution", [448, 448]), r"image_resolution is \[448, 448\]"),
    "no steps from noise": ("smolvla", settled("num_steps", None), r"num_steps is None: expected a whole number"),
    "steps that are no number": ("pi0", settled("num_inference_steps", 0), r"num_inference_steps is 0: expected 1"),
    "no layers": ("smolvla", settled("num_vlm_layers", None), r"num_vlm_layers is None: expected a whole number"),
    "no expert": ("smolvla", settled("num_expert_layers", "2"), r"num_expert_layers is '2': expected a whole number"),
    "a smaller expert": ("smolvla", settled("num_expert_layers", 1), r"num_expert_layers is 1: expected 2"),
    "an expert that has no heads": ("smolvla", settled("expert_width_multiplier", 0.7), r"expert's width is 22"),
    "another family": (
        "smolvla",
        vlm(lambda d: d.update(model_type="gemma3")),
        r"model_type is 'gemma3': expected smol",
    ),
    "another text model": (
        "smolvla",
        vlm(lambda d: d["text_config"].update(hidden_act="gelu")),
        r"vlm/config\.json: text_config: hidden_act is 'gelu': expected 'silu'",
    ),
    "another vision tower": (
        "smolvla",
        vlm(lambda d: d["vision_config"].update(hidden_act="relu")),
        r"vision_config: hidden_act is 'relu': expected 'gelu_pytorch_tanh'",
    ),
    "a picture's two sides": (
        "smolvla",
        vlm(lambda d: d["vision_config"].update(image_size=[32, 32])),
        r"vlm/config\.json: vision_config: image_size is \[32, 32\]: expected a whole number",
    ),
    "heads that do not fit": (
        "smolvla",
        vlm(lambda d: d["text_config"].update(num_attention_heads=5)),
        r"text_config: hidden_size is 32: expected a multiple of 5, its heads",
    ),
    "no text model": ("smolvla", vlm(lambda d: d.update(text_config=None)), r"text_config is None: expected an object"),
    "a word in front": ("smolvla", special("<bos> $A"), r"makes <bos> .* of .*: expected nothing around them"),
    "no beginning": ("pi0", special("$A"), r"tokenizer\.json makes .* of .*: expected <bos> before them"),
    "an end": ("pi0", special("<bos> $A <bos>"), r"expected <bos> before them and nothing else"),
    "the vision tower twice": (
        "pi0",
        rewrite("model.safetensors", twice(f"{VISION}vision_model.{PATCH}", f"{VISION}{PATCH}")),
        r"vision_tower\.embeddings\S* and \S*vision_tower\.vision_model\.embeddings\S*: expected one of them",
    ),
}


@pytest.mark.parametrize("fault", list(OF_ONE))
def test_what_is_off_in_one_of_them_is_refused(sim: Any, fault: str, tmp_path: Path) -> None:
    kind, change, words = OF_ONE[fault]
    write_lerobot(tmp_path / kind, kind)
    change(tmp_path / kind)
    with pytest.raises(DataError, match=words):
        loaded(tmp_path / kind, sim)


def stats(key: str, **rows: Any) -> Callable[[Path], None]:
    """Others of openpi's."""
    return edit("assets/bridge/norm_stats.json", lambda d: d["norm_stats"][key].update(rows))


OPENPI_FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "actions of a wider robot": (
        stats("actions", mean=[0.1] * 14 + [0.0] * 18, std=[0.2] * 14 + [0.0] * 18),
        r"bridge/norm_stats\.json: statistics of actions have 14 numbers, but for padding: expected 5, as the sim",
    ),
    "a wider robot that stands still": (
        stats("actions", mean=[0.1] * 5 + [0.0] * 2, std=[0.2] * 5 + [0.0, 0.01]),
        r"statistics of actions have 7 numbers, but for padding: expected 5",
    ),
    "states of a narrower robot": (
        stats("state", mean=[0.1] * 14 + [0.0] * 18, std=[0.2] * 14 + [0.0] * 18),
        r"statistics of state have 14 numbers, but for padding: expected 19",
    ),
    "too few": (stats("actions", mean=[0.1] * 3, std=[0.2] * 3), r"statistics of actions: mean has 3 numbers: exp"),
    "deviations below 0": (
        stats("actions", std=[0.2, -0.2, 0.2, 0.2, 0.2]),
        r"statistics of actions: std of column 1 is -0\.2: expected 0 or more",
    ),
    "an action that never moves": (
        stats("actions", std=[0.2, 0.2, 0.0, 0.2, 0.2]),
        r"statistics of actions: std of column 2 is 0\.0: expected more than 0",
    ),
    "texts": (stats("actions", mean=["a"] * 5), r"mean of column 0 is 'a': expected a finite number"),
    "nested": (stats("actions", mean=[[0.0]] * 5), r"mean of column 0 is \[0\.0\]: expected a finite number"),
    "ragged": (stats("actions", mean=[[0.0, 1.0], 0.0, 1.0, 2.0, 3.0]), r"column 0 is \[0\.0, 1\.0\]: expected a fin"),
    "nulls": (stats("state", mean=[None] * 19), r"statistics of state: mean of column 0 is None: expected a finite"),
    "no numbers": (stats("state", std=[float("nan")] * 19), r"std of column 0 is nan: expected a finite number"),
    "no list": (stats("state", std=1.0), r"statistics of state: std is 1\.0: expected a list"),
    "no statistics": (
        edit("assets/bridge/norm_stats.json", lambda d: d["norm_stats"].pop("state")),
        r"bridge/norm_stats\.json: state is missing: expected an object",
    ),
    "an adapter beside": (
        lambda path: (path / "adapter_config.json").write_text("{}"),
        r"adapter_config\.json is of an adapter",
    ),
    "no beginning": (special("$A"), r"tokenizer\.json makes .*: expected <bos> before them"),
    "the next model": (settled("pi05", True), r"config\.json: pi05 is True: expected False"),
    "a width that is no number": (settled("action_dim", None), r"action_dim is None: expected a whole number"),
    "a chunk that is no number": (settled("action_horizon", True), r"action_horizon is True: expected a whole number"),
    "the vision tower twice": (
        rewrite(
            "model.safetensors",
            twice(f"{VISION}vision_model.{PATCH}".removeprefix("model."), f"{VISION}{PATCH}".removeprefix("model.")),
        ),
        r"vision_tower\.embeddings\S* and \S*vision_tower\.vision_model\.embeddings\S*: expected one of them",
    ),
}


@pytest.mark.parametrize("fault", list(OPENPI_FAULTS))
def test_what_is_off_in_openpis_is_refused(sim: Any, fault: str, tmp_path: Path) -> None:
    write_openpi(tmp_path / "pi0")
    change, words = OPENPI_FAULTS[fault]
    change(tmp_path / "pi0")
    with pytest.raises(DataError, match=words):
        read_openpi(tmp_path / "pi0", sim)


def test_openpis_statistics_may_be_padded_with_ones(sim: Any, tmp_path: Path) -> None:
    """Deviations of 1 leave padding as it is, those of 0 are what zeros have."""
    write_openpi(tmp_path / "pi0")
    plain = read_openpi(tmp_path / "pi0", sim).transforms
    stats("actions", mean=[*ACTION["mean"], *[0.0] * 3], std=[*ACTION["std"], *[1.0] * 3])(tmp_path / "pi0")
    assert read_openpi(tmp_path / "pi0", sim).transforms == plain


def test_an_embedding_that_is_not_its_heads_is_refused() -> None:
    weights = {
        HEAD: torch.zeros(2, 2),
        "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight": torch.ones(2, 2),
    }
    with pytest.raises(DataError, match="they are tied"):
        from_openpi(weights, "here")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"cameras": None},
            r"cameras are not given: expected a picture of image_flat_near for each of observation\.images\.top",
        ),
        ({"cameras": {"observation.images.top": "image_flat_near"}}, r"cameras lack 'observation\.images\.wrist'"),
        ({"cameras": {**CAMERAS, "observation.images.side": ""}}, r"cameras 'observation\.images\.side' is unknown"),
        ({"cameras": {**CAMERAS, "observation.images.wrist": "image_flat_near"}}, r"once at most"),
        ({"cameras": {**CAMERAS, "observation.images.top": "above"}}, r"policy\.camera 'above' is unknown"),
        ({"horizon": 7}, r"horizon is 7: expected 1 to 6"),
    ],
)
def test_a_sim_that_does_not_fit_is_refused(toy: tuple[str, Path, Any], sim: Any, changes: Any, words: str) -> None:
    with pytest.raises(RobotrlError, match=words):
        loaded(toy[1], sim, **changes)


def test_a_state_of_another_width_is_refused(toy: tuple[str, Path, Any], sim: Any) -> None:
    specs = visible(sim)
    with pytest.raises(ConfigError, match=r"measured vectors are \(none\): expected one of 19 numbers"):
        load_lerobot(
            toy[1],
            {key: specs[key] for key in ("image_flat_near", "instruction")},
            sim.action_spec,
            vlm=toy[1] / "vlm",
            cameras=CAMERAS,
        )
