"""Directories of vision-language models of `transformers`, which are to learn to say actions.

Such a model is no policy yet: its pictures, words and weights are read as strictly as a policy's, but what it says of
actions means nothing before it has been cloned. `transformers` itself loads the weights, under the names that they were
published with; a weight that is missing, left over or of another shape is refused. What a model computes through
`robotrl.policies.vla.families` is held against what it computes by itself.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText
from transformers.utils import logging

from robotrl.data.normalisation import transforms_for, within_bounds
from robotrl.data.reader import Dataset
from robotrl.errors import ConfigError, DataError, unknown
from robotrl.importers.files import read_json, read_tokenizer_file
from robotrl.load import probe_observations
from robotrl.policies.vla.families import FAMILIES
from robotrl.policies.vla.pretrained_vlm import VlmPolicy, VlmPolicyCfg
from robotrl.policies.vla.roles import roles
from robotrl.policies.vla.speaker import Decoding
from robotrl.policies.vla.vlm import VlmCfg, family_of, image_of, read_config
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup

SEED = 0
"""Of what is new: queries, and the projector of a measured state."""
TOLERANCE = 1e-3
"""Of the largest logit; an architecture that is used otherwise than it works is off by far more."""
PROCESSORS = ("preprocessor_config.json", "processor_config.json")


class Pixels(NamedTuple):
    """How pictures become what a model sees."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def load_vlm(
    path: str | Path,
    observation_spec: Mapping[str, Spec],
    action_spec: Spec,
    *,
    decoding: Decoding = "autoregressive",
    horizon: int = 1,
    state: int = 0,
    camera: str = "",
    template: str = "",
    stats: Dataset | None = None,
    bins: int = 256,
) -> VlmPolicy:
    """A policy to be cloned into, on the observations and actions of a sim.

    Args:
        path: a directory with `config.json`, safetensors, `tokenizer.json`, and how pictures are normalised.
        observation_spec: of the sim; a square picture, an instruction.
        action_spec: of the sim.
        decoding: one token after the other, or "parallel": all of a chunk from learned queries.
        horizon: actions in a chunk.
        state: width of the measured state that the model is to see, 0 for none.
        camera: key of the picture; may be left out where there is one.
        template: the prompt around {picture} and {task}; the family's if left out.
        stats: whose statistics normalise; needed with a state. Actions go by its quantiles, without by their bounds.
        bins: of each element of an action.

    Raises:
        DataError: what the directory holds does not fit together, or is used otherwise by its own code.
        ConfigError: it does not fit the sim or the settings.
        CapabilityError: the sim has no picture or no instruction.
    """
    path = Path(path)
    config = read_json(path, "config.json")
    if config.get("model_type") not in FAMILIES:
        raise DataError(f"{path}/config.json: {unknown('model_type', str(config.get('model_type')), FAMILIES)}")
    made = read_config(config)
    tokenizer, end = _tokenizer(path, made)
    pixels = _pixels(path)
    seen = roles(dict(observation_spec), (camera,) if camera else ())
    sizes = VlmCfg(
        config=config,
        image=_image(made, observation_spec[seen.pictures[0]].shape[0]),
        mean=pixels.mean,
        std=pixels.std,
        end=end,
        stop=_stop(path, made),
        bins=bins,
        decoding=decoding,
        state=state,
        queries=horizon * action_spec.shape[0] if decoding == "parallel" else 0,
    )
    group = _transforms(observation_spec, action_spec, state, stats)
    cfg = VlmPolicyCfg(sizes, tokenizer, horizon, camera, template)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        policy = VlmPolicy(dict(observation_spec), action_spec, group, cfg)
    net: Any = policy.net
    # what was drawn is gone before what is read, as large, is there
    net.vlm = nn.Identity()
    net.vlm = _weights(path)
    policy.eval()
    check_own(policy, str(path))
    return policy


@torch.no_grad()
def check_own(policy: VlmPolicy, where: str) -> None:
    """Hold what the language model says first against what the model's own code makes of the same picture and prompt.

    Raises:
        DataError: they differ: this version of `transformers` does otherwise than `families` says.
    """
    net: Any = policy.net
    inputs = probe_observations(policy.observation_spec, policy.transforms.inputs)
    prompts = policy.prompt(inputs[policy.seen.words])
    pictures = inputs[policy.seen.pictures[0]]
    for row in range(len(pictures)):
        there = prompts.there[row]
        ids, picture = prompts.ids[row][there][None], pictures[row : row + 1]
        sight = net.sight(picture)
        ours = net.first(net.prefix(sight, ids, torch.ones_like(ids, dtype=torch.bool)))
        theirs = _own(net, ids, picture, sight.shape[1])
        error = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12))
        if not error <= TOLERANCE:
            raise DataError(
                f"{where}: the first token's logits are off by {error:.1e} of the largest from those that the model's"
                f" own code computes: expected {TOLERANCE:g} at most; this version of transformers uses"
                f" {net.vlm.config.model_type} otherwise than it is used here"
            )


def _own(net: Any, ids: Tensor, picture: Tensor, patches: int) -> Tensor:
    """Logits (1, bins) of the next token by the model's own forward."""
    token = int(net.vlm.config.image_token_id)
    at = int((ids[0] == token).nonzero()[0])
    full = torch.cat([ids[:, :at], ids.new_full((1, patches), token), ids[:, at + 1 :]], dim=1)
    shown = net.family.own(net.vlm.model, net.pixels(picture), full == token)
    logits = net.vlm(input_ids=full, attention_mask=torch.ones_like(full), **shown).logits[:, -1]
    return logits[:, net.end - net.speech.bins : net.end].flip(-1)


def _weights(path: Path) -> nn.Module:
    """The model with the directory's weights, all of them and no others.

    Raises:
        DataError: a file is missing or cannot be read, or weights are missing, left over or of another shape.
    """
    loader: Any = AutoModelForImageTextToText
    try:
        with _quiet():
            model, report = loader.from_pretrained(
                path,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    # each of the libraries below it has errors of its own for a damaged file
    except Exception as error:
        raise DataError(f"{path}: the weights cannot be read: {' '.join(str(error).split())[:500]}") from error
    for problem, key in (("lacks weights", "missing_keys"), ("has unknown weights", "unexpected_keys")):
        if found := sorted(report[key]):
            raise DataError(f"{path} {problem}: {', '.join(found[:3])}{', ...' if len(found) > 3 else ''}")
    for name, has, wanted in sorted(report["mismatched_keys"]):
        raise DataError(f"{path}: weight {name!r} has shape {tuple(has)}: expected {tuple(wanted)}")
    return model


@contextmanager
def _quiet() -> Generator[None]:
    """No bars and no reports from `transformers`: what they say is raised."""
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _tokenizer(path: Path, config: Any) -> tuple[str, int]:
    """The contents of `tokenizer.json`, and one past the last of its ids that were not added later.

    Raises:
        DataError: it does not fit the embedding.
    """
    stored, plain, every = read_tokenizer_file(path)
    rows = int(config.get_text_config().vocab_size)
    if every > rows:
        raise DataError(f"{path}/tokenizer.json has {every} tokens: expected {rows} at most, the embedding's rows")
    return stored, plain


def _pixels(path: Path) -> Pixels:
    """Raises:
    DataError: no file says how pictures are normalised, or not as shares of 255, by three means and deviations.
    """
    for name in PROCESSORS:
        if not (path / name).is_file():
            continue
        said = read_json(path, name)
        said = said.get("image_processor", said)
        if "image_mean" not in said:
            continue
        if said.get("do_normalize") is False or abs(float(said.get("rescale_factor", 1 / 255)) * 255 - 1) > 1e-3:
            raise DataError(
                f"{path}/{name}: do_normalize is {said.get('do_normalize')}, rescale_factor"
                f" {said.get('rescale_factor')}: expected pictures as shares of 255, normalised"
            )
        rows = [tuple(float(x) for x in said[key]) for key in ("image_mean", "image_std")]
        if [len(row) for row in rows] != [3, 3] or min(rows[1]) <= 0:
            raise DataError(f"{path}/{name}: image_mean and image_std are {rows}: expected three numbers each")
        mean, std = rows
        return Pixels((mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))
    raise DataError(f"{path} has no image_mean in {' or '.join(PROCESSORS)}: expected how pictures are normalised")


def _image(config: Any, pixels: int) -> int:
    """Pixels of the side of what the model sees, of pictures of so many; others are fitted."""
    multiple = family_of(config).multiple
    if multiple is None:
        return image_of(config) or pixels
    least = multiple(config)
    return max(1, round(pixels / least)) * least


def _stop(path: Path, config: Any) -> int:
    """Id of the end of a text.

    Raises:
        DataError: the config names none.
    """
    for said in (config.get_text_config(), config):
        found = getattr(said, "eos_token_id", None)
        if found is not None:
            return int(found[0] if isinstance(found, list) else found)
    raise DataError(f"{path}/config.json has no eos_token_id: expected the id of the end of a text")


def _transforms(
    observation_spec: Mapping[str, Spec], action_spec: Spec, state: int, stats: Dataset | None
) -> TransformGroup:
    if stats is not None:
        return transforms_for(stats, observation_spec, action_spec, "quantiles")
    if state:
        raise ConfigError(f"state is {state} and stats is not given: expected a dataset whose statistics normalise it")
    return TransformGroup((), within_bounds(action_spec))
