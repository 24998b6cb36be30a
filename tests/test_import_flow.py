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
from test_policies_vla_flow import published
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch import Tensor

import robotrl
from robotrl.errors import ConfigError, DataError, RobotrlError
from robotrl.importers import pi0
from robotrl.importers.fitting import from_stats
from robotrl.importers.lerobot import load_lerobot
from robotrl.importers.openpi import load_openpi
from robotrl.importers.pi0 import EMBEDDING, HEAD, PREFIXES, UNUSED, from_openpi
from robotrl.load import policy_from_tree, policy_tree
from robotrl.policies.vla.pi0 import Pi0, Pi0Cfg
from robotrl.policies.vla.pretrained_flow import PretrainedFlow
from robotrl.policies.vla.resize import fit
from robotrl.policies.vla.smolvla import SmolVla, SmolVlaCfg
from robotrl.sims.mujoco.tabletop.language import Family, compositions, encode
from robotrl.spec import HasChain, HasDecode, visible

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
SAID = [one.say(way) for family in Family for one in compositions(family) for way in range(2)]


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
        ("tokenizer_processor", {"max_length": 48, "tokenizer_name": "somebody/SmolVLM2-Toy"}),
        ("device_processor", {"device": "cuda"}),
        ("normalizer_processor", norm),
    ]
    processor(path, "policy_preprocessor", before, stats)
    processor(path, "policy_postprocessor", [("unnormalizer_processor", norm), ("device_processor", {})], stats)
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
    there = torch.zeros(4, max(map(len, ids)), dtype=torch.bool)
    padded = torch.zeros(there.shape, dtype=torch.int64)
    for row, some in enumerate(ids):
        padded[row, : len(some)], there[row, : len(some)] = torch.tensor(some), True
    with torch.no_grad():
        picture = fit(obs["image_flat_near"], 32, centred=kind == "pi0")
        memory = net.see([net.sight(picture), None], padded, there, torch.nn.functional.pad(state.float(), (0, 5)))
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
        assert out.ids[0][out.there[0]].tolist() == plain.encode(f"{text}\n").ids


def test_openpis_directories_are_read_whole(tmp_path: Path, sim: Any) -> None:
    net = write_openpi(tmp_path / "pi0")
    cameras = {"base_0_rgb": "image_flat_near", "left_wrist_0_rgb": "", "right_wrist_0_rgb": ""}
    specs = {key: visible(sim)[key] for key in ("image_flat_near", "instruction", "state")}

    def read(**changes: Any) -> Any:
        settings: dict[str, Any] = {
            "tokenizer": tmp_path / "pi0" / "vlm",
            "cameras": cameras,
            "key": "bridge",
            **changes,
        }
        return load_openpi(tmp_path / "pi0", specs, sim.action_spec, **settings)

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
    with pytest.raises(ConfigError, match=r"key 'bridges' is unknown: did you mean 'bridge'"):
        read(key="bridges")
    with pytest.raises(ConfigError, match=r"cameras lack 'left_wrist_0_rgb'"):
        read(cameras={"base_0_rgb": "image_flat_near"})


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
    left, both = (fit(picture, 4, centred)[0, :, :, 0] for centred in (False, True))
    assert left.tolist() == [[0.0] * 4] * 2 + [[200.0] * 4] * 2
    assert both.tolist() == [[0.0] * 4] + [[200.0] * 4] * 2 + [[0.0] * 4]
    square = torch.randint(0, 256, (2, 4, 4, 3), dtype=torch.uint8)
    assert fit(square, 4, True) is square
    grown = fit(square, 8, True)
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


HEADLESS = "model.action_out_proj.weight"
NORM = "policy_preprocessor_step_5_normalizer_processor.safetensors"
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
        r"expected 19, finite ones",
    ),
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
