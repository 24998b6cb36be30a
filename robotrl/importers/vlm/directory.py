"""Importer of vision-language models of `transformers`, as a start for training VLA policies.

Such a model is no policy yet: it is read as strictly as a policy, but its action tokens mean nothing before behavior
cloning. `transformers` itself loads the weights, under their published names; a weight that is missing, left over or of
another shape is refused. The model's output through `robotrl.policies.vla.networks.families` is compared with that of
its own forward pass.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robotrl.datasets.agreement.agree import agree
from robotrl.datasets.normalization import transforms_for, within_bounds
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError, DataError, RobotrlError
from robotrl.importers.files import read_json, read_tokenizer_file
from robotrl.importers.shards import INDEX, SINGLE
from robotrl.importers.vlm.fields import read_pixels
from robotrl.importers.vlm.prompt import check_prompt
from robotrl.importers.vlm.weights import check_files, read_model, ties
from robotrl.policies.vla.networks.autoregressive import Decoding
from robotrl.policies.vla.networks.vlm import VlmCfg, check_vision_layer, family_of, image_of, read_config
from robotrl.policies.vla.pretrained_vlm import VlmPolicy, VlmPolicyCfg
from robotrl.policies.vla.roles import roles
from robotrl.run.policy_checkpoint import probe_observations
from robotrl.spec import Spec, measured
from robotrl.transforms import TransformGroup

SEED = 0
"""Seed of the new weights: queries and the projector of a measured state."""
TOLERANCE = 1e-3
"""Tolerance relative to the largest logit; a wrong use of an architecture is off by far more."""


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
    """Load a vision-language model as an untrained policy for the observations and actions of a sim.

    Args:
        path: a directory with `config.json`, safetensors, `tokenizer.json` and a preprocessor config.
        observation_spec: the sim's spec: a square image, an instruction.
        action_spec: the sim's action.
        decoding: "autoregressive": one token at a time; "parallel": all of a chunk from learned queries.
        horizon: actions in a chunk.
        state: width of the measured state as an input, 0 for none.
        camera: key of the image; optional if there is one image.
        template: prompt with {picture} and {task}; empty for the family's default.
        stats: dataset whose statistics normalize states and actions (by quantiles); required with a state. Without,
            actions are normalized by their bounds.
        bins: bins for each element of an action.

    Raises:
        DataError: the directory's files contradict each other, or the model's own code computes otherwise.
        ConfigError: the model does not match the sim or the settings.
        CapabilityError: the sim has no image or no instruction.
    """
    path = Path(path)
    config = read_json(path, "config.json")
    check_files(path)
    made = _config(path, config)
    tokenizer, end = _tokenizer(path, made)
    pixels = read_pixels(path)
    seen = roles(dict(observation_spec), (camera,) if camera else ())
    with _used(path, "made"):
        image = _image(made, observation_spec[seen.pictures[0]].shape[0])
    sizes = VlmCfg(
        config=config,
        image=image,
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
    with torch.random.fork_rng(devices=[]), _used(path, "made"):
        torch.manual_seed(SEED)
        policy = VlmPolicy(dict(observation_spec), action_spec, group, cfg)
    check_prompt(policy, made.model_type, int(made.image_token_id), path)
    net: Any = policy.net
    # free the random weights before the stored ones, which are as large, are read
    tied = ties(net.vlm)
    net.vlm = nn.Identity()
    net.vlm = read_model(path, tied)
    policy.eval()
    with _used(path, "asked"):
        check_own(policy, str(path))
    return policy


def _config(path: Path, config: Mapping[str, Any]) -> Any:
    """Parse `config.json` with `transformers`.

    Raises:
        DataError: an unknown family, invalid fields, or weights in files of other names.
    """
    if "transformers_weights" in config:
        raise DataError(
            f"{path}/config.json: transformers_weights is {config['transformers_weights']!r}: expected weights in"
            f" {SINGLE} or by {INDEX}"
        )
    try:
        made = read_config(config)
        check_vision_layer(made)
    except ConfigError as error:
        raise DataError(f"{path}/config.json: {error}") from error
    return made


@contextmanager
def _used(path: Path, how: str) -> Generator[None]:
    """Convert errors of `transformers` about a config to a `DataError`.

    Raises:
        DataError: in place of another error.
    """
    try:
        yield
    except RobotrlError:
        raise
    # inconsistent sizes raise errors of any kind, in torch, too
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise DataError(
            f"{path}/config.json: the model that it describes cannot be {how}: expected sizes that fit each other"
            f" ({said})"
        ) from error


@torch.no_grad()
def check_own(policy: VlmPolicy, where: str) -> None:
    """Compare the first token's logits with those of the model's own forward pass, for the same image and prompt.

    Raises:
        DataError: they differ: this version of `transformers` computes otherwise than `families`.
    """
    net: Any = policy.net
    inputs = probe_observations(policy.observation_spec, policy.transforms.inputs)
    prompts = policy.prompt(inputs[policy.roles.words])
    pictures = inputs[policy.roles.pictures[0]]
    for row in range(len(pictures)):
        token_mask = prompts.token_mask[row]
        ids, picture = prompts.ids[row][token_mask][None], pictures[row : row + 1]
        features = net.encode_images(picture)
        ours = net.first(net.prefix(features, ids, torch.ones_like(ids, dtype=torch.bool)))
        theirs = _own(net, ids, picture, features.shape[1])
        error = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12))
        if not error <= TOLERANCE:
            raise DataError(
                f"{where}: the first token's logits are off by {error:.1e} of the largest from those that the model's"
                f" own code computes: expected {TOLERANCE:g} at most; this version of transformers uses"
                f" {net.vlm.config.model_type} otherwise than it is used here"
            )


def _own(net: Any, ids: Tensor, picture: Tensor, patches: int) -> Tensor:
    """Logits (1, bins) of the next token from the model's own forward pass."""
    token = int(net.vlm.config.image_token_id)
    at = int((ids[0] == token).nonzero()[0])
    full = torch.cat([ids[:, :at], ids.new_full((1, patches), token), ids[:, at + 1 :]], dim=1)
    shown = net.family.own(net.vlm.model, net.pixels(picture), full == token)
    logits = net.vlm(input_ids=full, attention_mask=torch.ones_like(full), **shown).logits[:, -1]
    return logits[:, net.end - net.decoding_cfg.bins : net.end].flip(-1)


def _tokenizer(path: Path, config: Any) -> tuple[str, int]:
    """Contents of `tokenizer.json`, and the size of its vocabulary without added tokens.

    Raises:
        DataError: it has more tokens than the embedding has rows.
    """
    stored, plain, every = read_tokenizer_file(path)
    rows = _rows(config)
    if every > rows:
        raise DataError(f"{path}/tokenizer.json has {every} tokens: expected {rows} at most, the embedding's rows")
    return stored, plain


def _rows(config: Any) -> int:
    """Rows of the embedding."""
    return int(config.get_text_config().vocab_size)


def _image(config: Any, pixels: int) -> int:
    """Side of the model's input image in pixels, for sim images of this side, which are resized to it."""
    multiple = family_of(config).multiple
    if multiple is None:
        return image_of(config) or pixels
    least = multiple(config)
    return max(1, round(pixels / least)) * least


def _stop(path: Path, config: Any) -> int:
    """Id of the end-of-text token.

    Raises:
        DataError: the config has none, or an invalid id.
    """
    for said in (config.get_text_config(), config):
        found = getattr(said, "eos_token_id", None)
        if found is None:
            continue
        first = found[0] if isinstance(found, list) and found else found
        if isinstance(first, bool) or not isinstance(first, int) or not 0 <= first < _rows(config):
            raise DataError(
                f"{path}/config.json: eos_token_id is {found!r}: expected an id from 0 to {_rows(config) - 1}"
            )
        return first
    raise DataError(f"{path}/config.json has no eos_token_id: expected the id of the end of a text")


def _transforms(
    observation_spec: Mapping[str, Spec], action_spec: Spec, state: int, stats: Dataset | None
) -> TransformGroup:
    if stats is not None:
        seen = {key: observation_spec[key] for key in measured(observation_spec)}
        return transforms_for(agree(stats, seen, action_spec, None), observation_spec, action_spec, "quantiles")
    if state:
        raise ConfigError(f"state is {state} and stats is not given: expected a dataset whose statistics normalise it")
    return TransformGroup((), within_bounds(action_spec))
