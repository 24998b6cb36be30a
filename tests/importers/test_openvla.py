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
from robotrl.importers.openvla import config as openvla_config
from robotrl.importers.openvla.directory import load_openvla, read_directory
from robotrl.policies.vla import bins
from robotrl.policies.vla.networks.openvla import OpenVla, OpenVlaCfg, TextCfg
from robotrl.policies.vla.networks.vision import TowerCfg
from robotrl.policies.vla.pretrained import BLANK, TEMPLATE
from robotrl.policies.vla.prompt import Pieces, unread
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from robotrl.sims.mujoco.tabletop.language import InstructionFamily, compositions
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
    said = [one.say(way) for family in InstructionFamily for one in compositions(family) for way in range(2)]
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
    # what begins at 0 is warned of where it stays there
    torch.nn.init.normal_(net.get_parameter("vision_backbone.featurizer.reg_token"))
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
        monkeypatch.setitem(openvla_config.TOWERS, name, cfg)


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
        assert expected[0] == 1 and ids.ids[row][ids.token_mask[row]].tolist() == expected


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


def part(name: str) -> Callable[[Path], None]:
    """One more of OFT's parts."""
    return lambda path: torch.save({"fc1.weight": torch.ones(2, 2)}, path / f"{name}--9_checkpoint.pt")


def matrix(weights: dict[str, Tensor]) -> str:
    return next(name for name, value in weights.items() if "layers.1.mlp.up_proj" in name and value.ndim == 2)


def actions(**fields: Any) -> Callable[[Path], None]:
    return config(lambda d: d["norm_stats"]["toy_no_noops"]["action"].update(fields))


def text(**fields: Any) -> Callable[[Path], None]:
    return config(lambda d: d["text_config"].update(fields))


def pixels(**fields: Any) -> Callable[[Path], None]:
    return lambda path: change(path / "preprocessor_config.json", lambda d: d.update(fields))


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4925122448\n"

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
    "JSON too deep": (lambda p: (p / "config.json").write_text("[" * 100_000), "config.json cannot be read"),
    # parts and files
    "a continuous head": (
        part("action_head"),
        "action_head--9_checkpoint.pt is a head of continuous actions .* untrained",
    ),
    "a diffusion head": (
        part("noisy_action_projector"),
        "noisy_action_projector--9_checkpoint.pt is of a diffusion head",
    ),
    "a backbone with FiLM": (part("vision_backbone"), "vision_backbone--9_checkpoint.pt is a backbone that the instr"),
    "an unknown part": (part("memory"), "memory--9_checkpoint.pt is a part that is not known"),
    "an adapter": (lambda p: (p / "adapter_config.json").write_text("{}"), "merge the adapter into the base first"),
    "an adapter's weights": (lambda p: (p / "adapter_model.bin").write_text(""), "adapter_model.bin is of an adapter"),
    "one file beside an index": (
        lambda p: save_file({"x": torch.ones(1)}, p / "model.safetensors"),
        "has both model.safetensors and model.safetensors.index.json",
    ),
    "an index of nothing": (
        lambda p: change(p / "model.safetensors.index.json", lambda d: d.update(weight_map={})),
        r"weight_map is \{\}",
    ),
    "an index of numbers": (
        lambda p: change(p / "model.safetensors.index.json", lambda d: d["weight_map"].update(x=1)),
        "weight_map of x is 1: expected the name of a file beside it",
    ),
    "an index of elsewhere": (
        lambda p: change(p / "model.safetensors.index.json", lambda d: d["weight_map"].update(x="../x.safetensors")),
        "the name of a file beside it",
    ),
    "weights left at git-LFS": (
        lambda p: (p / "model-00002-of-00002.safetensors").write_text(POINTER),
        "00002-of-00002.safetensors is a git-LFS pointer: .* `git lfs pull`",
    ),
    "a tokenizer left at git-LFS": (lambda p: (p / "tokenizer.json").write_text(POINTER), "json is a git-LFS pointer"),
    # weights
    "no number": (tensor(lambda w: w[matrix(w)][0].fill_(torch.nan)), r"\.weight' is not finite everywhere"),
    "an infinite number": (tensor(lambda w: w[matrix(w)][0].fill_(-torch.inf)), r"\.weight' is not finite everywhere"),
    "weights of 8 bits": (
        tensor(lambda w: w.update({matrix(w): w[matrix(w)].to(torch.int8)})),
        r"\.weight' is int8: .* their scales would be missing",
    ),
    # statistics of actions
    **{
        name: (actions(**fields), message)
        for name, fields, message in (
            (
                "no range at all",
                {"q01": [0.5] * 5, "q99": [0.5] * 5},
                "'toy_no_noops' of action: q01 and q99 of column 0",
            ),
            (
                "no range but of what is not normalised",
                {"q01": [0.0] * 5, "q99": [0.0] * 4 + [1.0]},
                "of column 0 are both 0",
            ),
            ("a mask of words", {"mask": ["True"] * 5}, "mask of column 0 is 'True': expected true or false"),
            ("a mask of nothing", {"mask": None}, "mask is None: expected list"),
            ("a quantile of nothing", {"q01": [None, 0, 0, 0, 0]}, "q01 of column 0 is None: expected a finite number"),
            ("a quantile of words", {"q99": [1.0, "a", 1, 1, 1]}, "q99 of column 1 is 'a'"),
            ("a quantile that is no number", {"q99": [1.0, float("nan"), 1, 1, 1]}, "q99 of column 1 is nan"),
            ("a quantile that is true", {"q99": [1.0, 1, True, 1, 1]}, "q99 of column 2 is True"),
            ("a deviation below 0", {"std": [1, 1, 1, -0.5, 1]}, "std of column 3 is -0.5: expected 0 or more"),
            ("bounds the wrong way", {"min": [0.0] * 5, "max": [1, 1, -1, 1, 1]}, "min of column 2 is 0, max is -1"),
            ("a mean of another width", {"mean": [0.0] * 4}, "mean has 4 numbers: expected 5"),
        )
    },
    "statistics in a list": (config(lambda d: d.update(norm_stats=[1])), r"norm_stats is \[1\]: expected dict"),
    "statistics of nothing": (config(lambda d: d["norm_stats"].update(other=None)), "statistics: other is None"),
    "statistics that contradict": (
        lambda p: (p / "dataset_statistics.json").write_text(
            json.dumps({"toy_no_noops": {"action": {**STATS["toy_no_noops"]["action"], "q99": [9.0] * WIDTH}}})
        ),
        r"q99 is \[9, 9, 9, 9, 9\] in dataset_statistics.json and \[0.5, 0.6, 0.1, 1, 1\] in config.json",
    ),
    # settings that are not supported
    "stretched positions": (
        text(rope_scaling={"type": "linear", "factor": 4.0}),
        "rope_scaling is .*: expected rope_type",
    ),
    "stretched positions, newer": (text(rope_parameters={"rope_type": "yarn"}), "rope_parameters is .*'yarn'"),
    "two bases": (text(rope_theta=1e4, rope_parameters={"rope_theta": 5e5}), r"rope_theta is \[10000.0, 500000.0\]"),
    "another language model": (text(model_type="gemma"), "model_type is 'gemma': expected 'llama'"),
    "another activation": (text(hidden_act="gelu"), "hidden_act is 'gelu': expected 'silu'"),
    "wider heads": (text(head_dim=32), "head_dim is 32: expected 16"),
    "one tower said": (
        config(lambda d: d.update(use_fused_vision_backbone=False)),
        "use_fused_vision_backbone is False",
    ),
    "larger pictures": (pixels(input_sizes=[[3, 384, 384]] * 2), "input_sizes is .*384.*: expected .*32"),
    "other means in the transforms": (
        pixels(tvf_normalize_params=[{"mean": [0.5] * 3, "std": [0.5] * 3}] * 2),
        "mean of tvf_normalize_params is .*in its order",
    ),
    # values of another kind
    "means of two widths": (pixels(means=[[0.4, 0.5, 0.6], [0.5, 0.5]]), r"means is .*in its order"),
    "means of words": (pixels(means=[["a"] * 3] * 2), "means is"),
    "a size of pictures alone": (config(lambda d: d.update(image_sizes=32)), r"image_sizes is 32: expected \[32, 32\]"),
    "no width": (text(hidden_size=None), "hidden_size is None: expected a whole number"),
    "a width of words": (text(hidden_size="64x"), "hidden_size is '64x'"),
    "heads that do not divide": (text(num_attention_heads=3), "num_attention_heads is 3: expected one that divides"),
    "shared heads that do not divide": (text(num_key_value_heads=3), "num_key_value_heads is 3: expected one that div"),
    "no bins": (config(lambda d: d.update(n_action_bins=None)), "n_action_bins is None"),
    "towers that are no names": (config(lambda d: d.update(timm_model_ids=[{}, {}])), "timm_model_ids '{}' is unknown"),
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


def test_oft_needs_what_its_directory_does_not_say(tmp_path: Path, sim: Any) -> None:
    """Left out, a chunk would be one action and the measured state would not be seen."""
    path = tmp_path / "oft"
    write(path, state=19)
    with pytest.raises(ConfigError, match=r"proprio_projector--1000_checkpoint\.pt is a part of OFT: .* openvla-oft"):
        load(path, sim)
    with pytest.raises(ConfigError, match="horizon is not given"):
        load(path, sim, decoding="parallel", state=19)
    with pytest.raises(ConfigError, match=r"state is not given beside .*proprio_projector--1000_checkpoint.pt"):
        load(path, sim, decoding="parallel", horizon=4)
    next(path.glob("proprio*")).unlink()
    with pytest.raises(ConfigError, match="state is 19, which OFT alone has: expected layout openvla-oft"):
        load(path, sim, state=19)


def test_statistics_of_the_state_are_held_too(tmp_path: Path, sim: Any) -> None:
    write(tmp_path / "oft", state=19)
    config(lambda d: d["norm_stats"]["toy_no_noops"]["proprio"].update(q99=[-1.0] * 19))(tmp_path / "oft")
    with pytest.raises(DataError, match="of proprio: q01 and q99 of column 0 are both -1"):
        load(tmp_path / "oft", sim, decoding="parallel", horizon=4, state=19)


@pytest.mark.parametrize("stored", [[torch.ones(2)], {"model": {"fc1.weight": torch.ones(2)}}, {"fc1.weight": None}])
def test_a_projector_that_holds_something_else_is_refused(stored: Any, tmp_path: Path, sim: Any) -> None:
    write(tmp_path / "oft", state=19)
    torch.save(stored, next((tmp_path / "oft").glob("proprio*")))
    with pytest.raises(DataError, match="expected tensors by name"):
        load(tmp_path / "oft", sim, decoding="parallel", horizon=4, state=19)


def test_what_may_be_wrong_is_warned_of(directory: Path, sim: Any) -> None:
    """Adapters that a merged directory keeps, columns without a range, matrices of zeros."""
    (directory / "lora_adapter").mkdir()
    actions(q99=[-0.5, 0.6, 0.1, 1.0, 1.0])(directory)
    emptied: list[str] = []

    def empty(weights: dict[str, Tensor]) -> None:
        emptied.extend(sorted(name for name, x in weights.items() if "layers.1." in name and x.ndim == 2))
        for name in emptied:
            weights[name].zero_()

    tensor(empty)(directory)
    with pytest.warns(UserWarning) as seen:
        load(directory, sim)
    said = [str(one.message) for one in seen]
    assert any("lora_adapter is not read: expected the weights beside it to be merged" in one for one in said)
    assert any("'toy_no_noops' of action: q01 is q99 in column 0" in one for one in said)
    zeros = next(one for one in said if "all numbers are 0 of" in one)
    assert sum(name in zeros for name in emptied) == min(3, len(emptied))
    assert len(emptied) <= 3 or f" and {len(emptied) - 3} more" in zeros


def test_fields_as_published_are_read(directory: Path, sim: Any) -> None:
    """What openvla-7b's configs say besides, and the base of positions as transformers 5 writes it."""
    config(lambda d: d.update(image_resize_strategy="resize-naive", timm_override_act_layers=[None, None]))(directory)
    text(rope_scaling=None, rope_parameters={"rope_type": "default", "rope_theta": 5e5}, head_dim=16)(directory)
    rows = [{"inplace": False, "mean": list(tower.mean), "std": list(tower.std)} for tower in TOY.values()]
    pixels(
        use_fused_vision_backbone=True,
        image_resize_strategy="resize-naive",
        input_sizes=[[3, 32, 32], [3, 32, 32]],
        interpolations=["bicubic", "bicubic"],
        tvf_do_letterbox=False,
        tvf_normalize_params=rows,
    )(directory)
    own = {"toy_no_noops": {**STATS["toy_no_noops"], "num_transitions": 9}}
    (directory / "dataset_statistics.json").write_text(json.dumps(own))
    policy = load(directory, sim)
    assert policy.net.cfg.text.rope_theta == 5e5


def test_the_published_preprocessor_is_that_of_the_published_towers(tmp_path: Path) -> None:
    said = {
        "input_sizes": [[3, 224, 224], [3, 224, 224]],
        "interpolations": ["bicubic", "bicubic"],
        "means": [[0.484375, 0.455078125, 0.40625], [0.5, 0.5, 0.5]],
        "stds": [[0.228515625, 0.2236328125, 0.224609375], [0.5, 0.5, 0.5]],
        "use_fused_vision_backbone": True,
    }
    rows = [{"inplace": False, "mean": m, "std": s} for m, s in zip(said["means"], said["stds"], strict=True)]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**said, "tvf_normalize_params": rows}))
    config = {
        "model_type": "openvla",
        "image_sizes": [224, 224],
        "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
        "timm_override_act_layers": [None, None],
        "n_action_bins": 256,
        "pad_to_multiple_of": 64,
        "use_fused_vision_backbone": True,
        "text_config": {"model_type": "llama", "pad_token_id": 32000, "torch_dtype": "bfloat16", "vocab_size": 32064},
    }
    assert openvla_config.network(tmp_path, config, "autoregressive", 0) == OpenVlaCfg()


def test_a_tokenizer_that_does_not_begin_or_tell_words_apart_is_refused(directory: Path, sim: Any) -> None:
    kept = (directory / "tokenizer.json").read_text()
    change(directory / "tokenizer.json", lambda d: d.update(post_processor=None))
    with pytest.raises(ConfigError, match="puts no '<s>' at the front of a text"):
        load(directory, sim)
    (directory / "tokenizer.json").write_text(kept)

    # the letters of one word are lost: as many tokens as before, and the word is unknown
    def lose_letter(data: dict[str, Any]) -> None:
        vocab, merges = data["model"]["vocab"], data["model"]["merges"]
        data["model"]["merges"] = [pair for pair in merges if "b" not in "".join(pair)]
        for name in [name for name in vocab if "b" in name]:
            number = vocab.pop(name)
            vocab[f"\u4e00{number}"] = number

    change(directory / "tokenizer.json", lose_letter)
    with pytest.raises(ConfigError, match=r"tokenizer.json makes \[.*\] of the sim's word '\w*b\w*': expected known"):
        load(directory, sim)


def test_words_of_the_same_tokens_are_told() -> None:
    pieces = Pieces([1], {"red": [4], "blue": [4]}, {"red": [5], "blue": [6]}, [2])
    assert unread(pieces, 0) == "makes [4] of the sim's words 'red' and 'blue': expected ids of their own"
    apart = pieces._replace(first={"red": [4], "blue": [7]})
    assert unread(apart, None) is None
    assert unread(apart, 6) == "makes [6] of the sim's word 'blue': expected known tokens"
    assert unread(apart._replace(later={"red": [], "blue": [6]}), None) is not None
    # one that reads all in small letters is none that reads wrongly
    assert unread(Pieces([1], {"Red": [4], "red": [4]}, {}, [2]), None) is None


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
