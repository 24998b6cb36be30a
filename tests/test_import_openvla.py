"""OpenVLA's directories: toy models in the published layout are read whole, and refused when anything is off."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
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
from robotrl.importers import openvla
from robotrl.importers.openvla import load_openvla, read_directory
from robotrl.load import policy_from_tree, policy_tree
from robotrl.policies.vla import bins
from robotrl.policies.vla.openvla import OpenVla, OpenVlaCfg, TextCfg
from robotrl.policies.vla.pretrained import BLANK, TEMPLATE
from robotrl.policies.vla.vision import TowerCfg
from robotrl.sims.mujoco.tabletop.language import Family, compositions
from robotrl.spec import HasTokens, visible

TOY = {
    "toy_dino": TowerCfg(32, 3, 2, 64, patch=8, image=32, prefix=5, layer_scale=True, mean=(0.4, 0.5, 0.6)),
    "toy_siglip": TowerCfg(48, 3, 2, 64, patch=8, image=32, pool=True),
}
TEXT = TextCfg(64, 2, 4, 2, 128, vocabulary=464, padding=64, positions=256)
WIDTH = 5
STATS: dict[str, Any] = {
    "toy_no_noops": {
        "action": {
            "q01": [-0.5, -0.4, -0.3, -1.0, 0.0],
            "q99": [0.5, 0.6, 0.1, 1.0, 1.0],
            "mask": [True, True, True, True, False],
        },
        "proprio": {"q01": [-1.0] * 19, "q99": [0.5] * 19},
    }
}


def sentences() -> list[str]:
    said = [one.say(way) for family in Family for one in compositions(family) for way in range(2)]
    return [TEMPLATE.replace("{task}", text) for text in said]


def tokenizer(size: int = TEXT.end) -> Tokenizer:
    """Byte pairs over words that begin with a blank, as Llama's; ids 0 to 2 are special, padding lies beyond."""
    made: Any = Tokenizer(models.BPE(unk_token="<unk>"))
    apart = [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Split("?", "isolated")]
    made.pre_tokenizer = pre_tokenizers.Sequence(apart)
    letters = [chr(i) for i in range(33, 127)] + [BLANK, "\n"] + [chr(i) for i in range(0x400, 0x600)]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=letters[: size - 60],
        show_progress=False,
    )
    made.train_from_iterator(sentences(), trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.add_special_tokens(["<PAD>"])
    return made


def write(path: Path, state: int = 0) -> OpenVla:
    """A toy model's directory, in two files."""
    torch.manual_seed(0)
    cfg = OpenVlaCfg(
        (TOY["toy_dino"], TOY["toy_siglip"]), TEXT, decoding="parallel" if state else "autoregressive", state=state
    )
    net = OpenVla(cfg)
    path.mkdir(parents=True)
    weights = {k: v for k, v in net.state_dict().items() if not k.startswith("proprio")}
    names = sorted(weights)
    parts = {f"model-0000{i}-of-00002.safetensors": names[i - 1 :: 2] for i in (1, 2)}
    for file, some in parts.items():
        save_file({name: weights[name].contiguous() for name in some}, path / file)
    index = {"metadata": {}, "weight_map": {name: file for file, some in parts.items() for name in some}}
    if state:
        own = {
            f"module.{k.removeprefix('proprio_projector.')}": v
            for k, v in net.state_dict().items()
            if k.startswith("proprio")
        }
        torch.save(own, path / "proprio_projector--1000_checkpoint.pt")
    text = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": TEXT.vocabulary,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
    }
    config = {
        "architectures": ["OpenVLAForActionPrediction"],
        "auto_map": {"AutoModelForVision2Seq": "modeling_prismatic.OpenVLAForActionPrediction"},
        "model_type": "openvla",
        "image_sizes": [32, 32],
        "timm_model_ids": list(TOY),
        "n_action_bins": 256,
        "pad_to_multiple_of": 64,
        "pad_token_id": 32000,
        "use_fused_vision_backbone": True,
        "text_config": text,
        "norm_stats": {"bridge_orig": {"action": {"q01": [0.0] * 7, "q99": [1.0] * 7}}, **STATS},
    }
    means, stds = ([list(getattr(tower, name)) for tower in TOY.values()] for name in ("mean", "std"))
    for name, data in (
        ("config.json", config),
        ("model.safetensors.index.json", index),
        ("preprocessor_config.json", {"image_processor_type": "PrismaticImageProcessor", "means": means, "stds": stds}),
    ):
        (path / name).write_text(json.dumps(data))
    tokenizer().save(str(path / "tokenizer.json"))
    return net


@pytest.fixture(autouse=True)
def toys_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cfg in TOY.items():
        monkeypatch.setitem(openvla.TOWERS, name, cfg)


@pytest.fixture(scope="module")
def sim() -> Any:
    return robotrl.make_sim("mujoco/tabletop", num_envs=4, seed=0, image="flat_near", image_size=32)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, OpenVla]:
    path = tmp_path_factory.mktemp("vla") / "toy"
    return path, write(path)


@pytest.fixture
def directory(published: tuple[Path, OpenVla], tmp_path: Path) -> Path:
    return shutil.copytree(published[0], tmp_path / "toy")


def load(path: Path, sim: Any, **options: Any) -> Any:
    return load_openvla(path, visible(sim), sim.action_spec, **{"key": "toy_no_noops", **options})


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))


# what is read


def test_a_directory_becomes_the_policy_that_was_written(published: tuple[Path, OpenVla], sim: Any) -> None:
    path, net = published
    policy = load(path, sim)
    assert isinstance(policy, HasTokens)
    for name, value in net.state_dict().items():
        assert torch.equal(policy.net.state_dict()[name], value), name
    obs = sim.reset(0)
    with torch.no_grad():
        chunk = policy.act(obs, mode="mean").chunk
        tokens = policy.sample_tokens(policy.encode(obs), None, "mean")
    # the published way back: middle of the bin, quantiles where the mask is true
    middle = bins.to_action(tokens).numpy().astype(np.float64)
    said = STATS["toy_no_noops"]["action"]
    low, high, mask = (np.array(said[name]) for name in ("q01", "q99", "mask"))
    expected = np.where(mask, 0.5 * (middle + 1) * (high - low) + low, middle)
    assert chunk.numpy() == pytest.approx(np.clip(expected, -1, 1), abs=1e-6)


def test_the_prompt_is_the_published_one(published: tuple[Path, OpenVla], sim: Any) -> None:
    path, _ = published
    policy, made = load(path, sim), tokenizer()
    sim.reset(3)
    obs = sim.reset(4)
    ids = policy.prompt(obs["instruction"])
    for row, text in enumerate(sim.instructions()):
        whole = f"In: What action should the robot take to {text}?\nOut:"
        expected = [*made.encode(whole).ids, made.token_to_id(BLANK)]
        assert expected[0] == 1 and ids.ids[row][ids.there[row]].tolist() == expected


def test_the_state_and_chunks_of_oft(tmp_path: Path, sim: Any) -> None:
    """Parallel decoding, a chunk of four, and a measured state whose quantiles become -1 and 1."""
    net = write(tmp_path / "oft", state=19)
    policy = load(tmp_path / "oft", sim, decoding="parallel", horizon=4, state=19)
    weights = policy.net.proprio_projector.fc1.weight
    assert torch.equal(weights, net.proprio_projector.fc1.weight)
    obs = {key: value.clone() for key, value in sim.reset(0).items()}
    assert policy.act(obs, mode="mean").chunk.shape == (4, 4, 5)
    seen: list[Tensor] = []
    policy.net.proprio_projector.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    obs["state"][:] = torch.linspace(-2.0, 1.5, 19)
    policy.encode(obs)
    expected = (2 * (torch.linspace(-2.0, 1.5, 19) + 1.0) / 1.5 - 1).clamp(-1, 1)
    assert seen[0][0] == pytest.approx(expected.numpy(), abs=1e-5)


def test_statistics_of_a_fine_tune_count(directory: Path, sim: Any) -> None:
    own = {"mine": {"action": {"q01": [-0.1] * WIDTH, "q99": [0.1] * WIDTH}}}
    (directory / "dataset_statistics.json").write_text(json.dumps(own))
    policy = load(directory, sim, key=None)
    obs = sim.reset(0)
    assert policy.act(obs, mode="mean").chunk.abs().max() <= 0.1 + 1e-6


def test_one_file_will_do(directory: Path, sim: Any, published: tuple[Path, OpenVla]) -> None:
    whole: dict[str, Tensor] = {}
    for file in directory.glob("*.safetensors"):
        whole |= load_file(file)
        file.unlink()
    (directory / "model.safetensors.index.json").unlink()
    save_file(whole, directory / "model.safetensors")
    policy = load(directory, sim)
    assert torch.equal(policy.net.projector.fc1.weight, published[1].projector.fc1.weight)


def test_what_was_read_is_saved_and_loaded_like_any_policy(published: tuple[Path, OpenVla], sim: Any) -> None:
    policy = load(published[0], sim)
    again = policy_from_tree(policy_tree(policy), "here")
    obs = sim.reset(0)
    assert torch.equal(policy.act(obs, mode="mean").chunk, again.act(obs, mode="mean").chunk)


# what is refused


def tensor(edit: Callable[[dict[str, Tensor]], None]) -> Callable[[Path], None]:
    """Edit the first file's tensors, and list them again."""

    def apply(path: Path) -> None:
        file = path / "model-00001-of-00002.safetensors"
        weights = load_file(file)
        edit(weights)
        save_file(weights, file)

        def listed(index: dict[str, Any]) -> None:
            kept = {k: v for k, v in index["weight_map"].items() if v != file.name}
            index["weight_map"] = kept | dict.fromkeys(weights, file.name)

        change(path / "model.safetensors.index.json", listed)

    return apply


def config(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda path: change(path / "config.json", edit)


def lose(weights: dict[str, Tensor]) -> None:
    del weights[min(name for name in weights if ".blocks." in name)]


def add(weights: dict[str, Tensor]) -> None:
    weights["language_model.model.layers.9.mlp.up_proj.weight"] = torch.zeros(1)


def cut(weights: dict[str, Tensor]) -> None:
    name = next(name for name in weights if name.endswith("fc2.weight"))
    weights[name] = weights[name][:-1].contiguous()


def swap(data: dict[str, Any]) -> None:
    data["means"], data["stds"] = data["means"][::-1], data["stds"][::-1]


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a tensor missing": (tensor(lose), r"lacks weights: vision_backbone\.\w+\.blocks\.0\.[\w.]+$"),
    "a tensor too many": (tensor(add), "has unknown weights: language_model.model.layers.9"),
    "a tensor of another shape": (tensor(cut), r"fc2.weight' has shape .*: expected"),
    "a file missing": (
        lambda p: (p / "model-00002-of-00002.safetensors").unlink(),
        "00002-of-00002.safetensors cannot be read",
    ),
    "a file cut short": (
        lambda p: (p / "model-00002-of-00002.safetensors").write_bytes(
            (p / "model-00002-of-00002.safetensors").read_bytes()[:-9]
        ),
        "00002-of-00002.safetensors cannot be read",
    ),
    "a tensor not listed": (
        lambda p: change(p / "model.safetensors.index.json", lambda d: d["weight_map"].pop(min(d["weight_map"]))),
        "is not listed there",
    ),
    "another model": (config(lambda d: d.update(model_type="llava")), "model_type is 'llava': expected 'openvla'"),
    "unknown towers": (
        config(lambda d: d.update(timm_model_ids=["toy_dino", "toy_siglop"])),
        "did you mean 'toy_siglip'",
    ),
    "one tower": (config(lambda d: d.update(timm_model_ids=["toy_dino"])), "expected 2, a fused backbone"),
    "towers swapped": (config(lambda d: d.update(timm_model_ids=list(TOY)[::-1])), "means is"),
    "pixels swapped": (lambda p: change(p / "preprocessor_config.json", swap), "in its order"),
    "another picture size": (
        config(lambda d: d.update(image_sizes=[48, 48])),
        r"image_sizes is \[48, 48\]: expected \[32, 32\]",
    ),
    "another tokenizer": (
        lambda p: tokenizer(TEXT.end - 8).save(str(p / "tokenizer.json")),
        "has 392 tokens: expected 400",
    ),
    "no tokenizer": (lambda p: (p / "tokenizer.json").unlink(), "tokenizer.json cannot be read"),
    "bins shifted": (config(lambda d: d.update(pad_to_multiple_of=32)), "tokens: expected 432"),
    "no statistics": (config(lambda d: d.pop("norm_stats")), "has statistics of actions"),
    "quantiles the wrong way": (
        config(lambda d: d["norm_stats"]["toy_no_noops"]["action"].update(q99=[-9.0] * WIDTH)),
        "q99 not below q01",
    ),
    "quantiles of two lengths": (
        config(lambda d: d["norm_stats"]["toy_no_noops"]["action"].update(q99=[9.0])),
        "have different lengths",
    ),
    "no JSON": (lambda p: (p / "config.json").write_text("{"), "config.json cannot be read"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_directory_that_is_off_is_refused(what: str, directory: Path, sim: Any) -> None:
    spoil, message = REFUSED[what]
    spoil(directory)
    with pytest.raises(DataError, match=message) as found:
        load(directory, sim)
    assert "\n" not in str(found.value).strip()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "toy"}, "key 'toy' is unknown: did you mean 'toy_no_noops'"),
        ({"key": None}, "expected one of bridge_orig, toy_no_noops"),
        ({"key": "bridge_orig"}, "actions of 'bridge_orig' have 7 numbers: expected 5"),
        ({"camera": "image_wrist"}, "policy.camera 'image_wrist' is unknown"),
    ],
)
def test_what_does_not_fit_the_sim(options: dict[str, Any], message: str, directory: Path, sim: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        load(directory, sim, **options)


def test_pictures_of_another_size_are_refused(directory: Path) -> None:
    sim = robotrl.make_sim("mujoco/tabletop", num_envs=1, seed=0, image="flat_near", image_size=64)
    with pytest.raises(ConfigError, match=r"has 64 pixels a side: expected 32, .* image_size=32"):
        load(directory, sim)


def test_a_state_needs_its_file_and_its_statistics(tmp_path: Path, sim: Any) -> None:
    write(tmp_path / "oft", state=19)
    options: dict[str, Any] = {"decoding": "parallel", "horizon": 2}
    with pytest.raises(ConfigError, match="expected one vector of 12 numbers"):
        load(tmp_path / "oft", sim, state=12, **options)
    file = next((tmp_path / "oft").glob("proprio*"))
    kept = file.read_bytes()
    file.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(DataError, match="cannot be read as weights alone"):
        load(tmp_path / "oft", sim, state=19, **options)
    file.unlink()
    with pytest.raises(DataError, match="has 0 files proprio_projector"):
        load(tmp_path / "oft", sim, state=19, **options)


def test_nothing_in_a_directory_is_run(tmp_path: Path, sim: Any) -> None:
    """A pickle that would make a file when loaded is refused, and has made none."""

    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return Path.touch, (tmp_path / "sprung",)  # type: ignore[return-value]

    write(tmp_path / "oft", state=19)
    file = next((tmp_path / "oft").glob("proprio*"))
    torch.save({"fc1.weight": Trap()}, file)
    with pytest.raises(RobotrlError, match="weights alone"):
        load(tmp_path / "oft", sim, decoding="parallel", horizon=2, state=19)
    assert not (tmp_path / "sprung").exists()


def test_reading_needs_no_weights(directory: Path) -> None:
    for file in directory.glob("*.safetensors"):
        file.unlink()
    found = read_directory(directory)
    assert found.net.text == TEXT and set(found.actions) == {"bridge_orig", "toy_no_noops"}
    assert set(found.states) == {"toy_no_noops"}
