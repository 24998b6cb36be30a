"""`robotrl reward train clip`: a small model of pictures and language of a sim."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro

from robotrl.cli.commands.parsing import at_least, check_seed
from robotrl.cli.commands.sim_flags import parse_with_sim
from robotrl.cli.outputs import fresh_folder
from robotrl.errors import ConfigError, unknown
from robotrl.registry import SIMS, make_sim, sim_options

if TYPE_CHECKING:
    from robotrl.rewards.vlm.encoder import ImageTextEncoder
    from robotrl.rewards.vlm.scenes import ActionLabels
    from robotrl.spec import VecSim
    from robotrl.spec.captions import CaptionTopic

HELD_OUT = 3
"""Every so-manyth scenario is held out by default."""


@dataclass(frozen=True)
class ClipArgs:
    """Train a small CLIP model on pictures of a sim and captions from its state, and judge it on held-out scenes."""

    sim: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SIM")]
    """Name from `robotrl list sims`, of one with captions. `--sim.FIELD VALUE` sets one of its options."""
    out: Path
    """Directory of the model."""
    camera: str | None = None
    """Camera that takes the pictures; default: the one that the sim's captions are made for."""
    actions: bool = False
    """Learn captions of actions, too, for the reward action-alignment; for sims that have such captions."""
    frames: int = 24_000
    """Number of pictures to record for training; a quarter as many are recorded for the judgment."""
    num_envs: int = 64
    """Number of envs that are recorded at once."""
    held_out: tuple[str, ...] = ()
    """Scenarios that are not trained on; default: every third one."""
    image_pixels: int = 64
    """Height and width of the model's images, a multiple of 32."""
    updates: int = 6000
    """Gradient steps."""
    batch: int = 128
    """Pictures in a minibatch."""
    text_updates: int = 2000
    """Gradient steps of the second stage, in which the text tower learns anew, from sentences with words left out."""
    image_tower: Annotated[Path | None, tyro.conf.arg(metavar="MODEL")] = None
    """Model of this command whose image tower is taken: only the second stage is run, e.g. for other wordings."""
    seed: int = 0
    """Seeds every random stream."""


def train_clip(argv: Sequence[str]) -> int:
    """Run the command."""
    args, options = parse_with_sim(ClipArgs, "robotrl reward train clip", argv, lambda args: sim_options(args.sim))
    check_seed(args.seed)
    at_least("--frames", args.frames, 100)
    at_least("--num-envs", args.num_envs, 1)
    SIMS.check(args.sim)
    from robotrl.rewards.action_alignment import TEMPERATURE
    from robotrl.rewards.vlm.actions import action_margin
    from robotrl.rewards.vlm.image_graph import image_graph
    from robotrl.rewards.vlm.scenes import check_captions, record_scenes
    from robotrl.rewards.vlm.small_clip import SmallClipCfg, class_scores, save_small_clip, train_small_clip
    from robotrl.rewards.vlm.text_tower import fit_text_tower
    from robotrl.spec import HasScenarios
    from robotrl.spec.captions import HasCaptions
    from robotrl.utils.progress import track

    cfg = SmallClipCfg(
        args.image_pixels, updates=args.updates, batch=args.batch, text_updates=args.text_updates, seed=args.seed
    )
    cfg.check()
    sim: VecSim = make_sim(args.sim, num_envs=args.num_envs, seed=args.seed, **options)
    camera = args.camera or (sim.caption_camera if isinstance(sim, HasCaptions) else "")
    check_captions(sim, camera)
    topics = sim.caption_topics if isinstance(sim, HasCaptions) else ()
    of_actions, labels = _of_actions(sim) if args.actions else ((), None)
    held_out = _held_out(args.held_out, sim.scenarios if isinstance(sim, HasScenarios) else ())
    began_s = time.monotonic()
    trained_s = 0.0
    image_tower: ImageTextEncoder | None = None
    if args.image_tower is not None:
        for name in ("updates", "batch"):
            if vars(args)[name] != vars(ClipArgs)[name]:
                raise ConfigError(
                    f"--{name} is {vars(args)[name]} beside --image-tower: expected it without, since it is a setting"
                    " of the first stage; --text-updates is that of the second"
                )
        image_tower, trained_s = _image_tower(args.image_tower, args.sim, options, camera, held_out)
    with fresh_folder("--out", args.out, inputs=[] if args.image_tower is None else [args.image_tower]):
        test_frames = max(args.frames // 4, 100)
        with track(args.frames + test_frames, "pictures", "frames") as bar:
            record = partial(record_scenes, sim, camera, args.image_pixels, progress=bar.advance, label_actions=labels)
            scenes = record(args.frames, seed=args.seed, split="train")
            unseen = record(test_frames, seed=args.seed, split="test")
        sim.close()
        if held_out:
            scenes = scenes.chosen(~np.isin(scenes.scenario, held_out))
            unseen = unseen.chosen(np.isin(unseen.scenario, held_out))
        learned = (*topics, *of_actions)
        if image_tower is None:
            with track(cfg.updates, "training", "updates") as bar:
                first = train_small_clip(scenes, learned, cfg, lambda loss: bar.advance(note=f"loss {loss:.2f}"))
            image_tower = first.encoder
        with track(cfg.text_updates, "text tower", "updates") as bar:
            trained = fit_text_tower(
                scenes, learned, image_tower, cfg, lambda loss: bar.advance(note=f"loss {loss:.2f}")
            )
        scores = class_scores(trained.encoder, unseen, topics)
        margin = action_margin(trained.encoder, unseen, of_actions, TEMPERATURE) if of_actions else None
        args.out.mkdir(parents=True, exist_ok=True)
        about = {
            "sim": args.sim,
            "options": options,
            "camera": camera,
            "held_out": list(held_out),
            "frames": len(scenes.pictures),
            "train_s": trained_s + time.monotonic() - began_s,
            "auc": {f"{score.topic}/{score.name}": None if math.isnan(score.auc) else score.auc for score in scores},
            "actions": None if margin is None else margin._asdict(),
        }
        graph = image_graph(trained.encoder.model.visual, cfg.image_pixels, cfg.image_pixels)
        save_small_clip(args.out, trained, about, graph)
    where = f"the held-out scenarios {', '.join(held_out)}" if held_out else "held-out starts"
    print(f"{args.out}: trained on {len(scenes.pictures):,} pictures of camera {camera}")
    print(f"judged on {where}, in wordings that were not trained on:")
    print(f"  {'caption':<24}{'AUC':>6}{'frames':>9}   (AUC against the topic's other captions)")
    for score in scores:
        shown = "-" if math.isnan(score.auc) else f"{score.auc:.3f}"
        print(f"  {score.topic + ': ' + score.name:<24}{shown:>6}{score.frames:>9,}")
    if margin is not None:
        print(
            f"actions, of {margin.frames:,} frames: the right one is the most probable in {100 * margin.accuracy:.1f} %"
            f" (the commonest of its context: {100 * margin.commonest:.1f} %),\n  its probability"
            f" {margin.right:.3f}, its margin over the best other one {margin.margin:+.3f} (temperature {TEMPERATURE})"
        )
    return 0


def _image_tower(
    path: Path, sim: str, options: dict[str, object], camera: str, held_out: tuple[str, ...]
) -> tuple[ImageTextEncoder, float]:
    """Small model of a directory, and the seconds of its training.

    Raises:
        ConfigError: it was trained on another sim, with other options of it, on another camera, or with other scenarios
            held out.
        DataError: it is no such model.
    """
    from robotrl.errors import DataError
    from robotrl.rewards.vlm.encoder import SCHEMA, WORDS_FILE, load_encoder
    from robotrl.utils.files import read_json

    if not (path / WORDS_FILE).is_file():
        raise DataError(f"--image-tower is {path}: expected a directory of `robotrl reward train clip`")
    about = read_json(path / WORDS_FILE, "vocabulary", SCHEMA)
    here = {"sim": sim, "options": options, "camera": camera, "held_out": held_out}
    for name, value in json.loads(json.dumps(here)).items():  # as it is stored: tuples are lists
        if about.get(name) != value:
            raise ConfigError(f"--image-tower is {path}, whose {name} is {about.get(name)!r}: expected {value!r}")
    return load_encoder(str(path)), float(about["train_s"])


def _of_actions(sim: VecSim) -> tuple[tuple[CaptionTopic, ...], ActionLabels]:
    """Topics of the sim's actions, and what labels its expert's actions."""
    from robotrl.rewards.vlm.actions import action_classes, action_topics, require_action_captions

    able = require_action_captions(sim)
    return action_topics(able.action_captions), lambda actions: action_classes(able, actions, sim.action_spec)


def _held_out(given: tuple[str, ...], scenarios: tuple[str, ...]) -> tuple[str, ...]:
    """Scenarios that are held out."""
    for name in given:
        if name not in scenarios:
            raise unknown("--held-out", name, scenarios)
    chosen = given or scenarios[HELD_OUT - 1 :: HELD_OUT]
    if scenarios and len(set(chosen)) >= len(scenarios):
        raise ConfigError(f"--held-out is {' '.join(chosen)}: expected fewer than all {len(scenarios)} scenarios")
    return tuple(chosen)
