"""Import of a policy of another library: read its files, check the policy, and store it as a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from robotrl.datasets.reader import read_dataset
from robotrl.errors import ConfigError, check_at_least, unknown
from robotrl.importers.examine import ActionErrors, Effects, check_labels, effects, labels
from robotrl.importers.hub import Fetched, fetch
from robotrl.importers.layouts import BACKBONES, LAYOUTS, NETWORKS, Layout
from robotrl.run.checkpoint import write_checkpoint
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.spec import Spec, VecSim, visible

STAGE = "import"
"""Kind of the checkpoint."""
SETTINGS: dict[str, tuple[Layout, ...]] = {
    "vlm": ("lerobot", "openpi"),
    "key": ("openvla", "openvla-oft", "openpi"),
    "state": ("openvla-oft", *BACKBONES),
    "stats": (*BACKBONES, *NETWORKS),
    "cameras": tuple(layout for layout in LAYOUTS if layout not in NETWORKS),
    "horizon": tuple(layout for layout in LAYOUTS if layout not in NETWORKS),
    "template": BACKBONES,
}
"""Layouts that support each layout-specific setting."""
ONE_PICTURE: tuple[Layout, ...] = ("openvla", "openvla-oft", *BACKBONES)
"""Layouts of models with one image."""


@dataclass(frozen=True)
class ImportCfg:
    """Import settings that the directory does not contain."""

    vlm: str = ""
    """Directory, or name on the hub, of the vision-language model's tokenizer (lerobot, openpi) and config (lerobot's
    SmolVLA)."""
    key: str = ""
    """Dataset or robot whose statistics are used; may be left out where there is one."""
    cameras: Mapping[str, str] = field(default_factory=dict)
    """From the policy's images to the sim's; "" for a missing one. May be left out where there is one of each."""
    horizon: int = 0
    """Executed actions of a chunk; 0 takes the directory's value, or 1. OFT: required, as in its training."""
    state: int = 0
    """openvla-oft, vlm, vlm-oft: width of the measured state; 0 for none."""
    stats: str = ""
    """vlm, vlm-oft: path of a dataset whose statistics normalise actions and state. sb3: a file of
    `robotrl.importers.sb3.write_statistics`."""
    template: str = ""
    """vlm, vlm-oft: prompt with {picture} and {task}; the family's if left out."""


class Imported(NamedTuple):
    """Result of an import."""

    path: Path
    source: str
    """Origin: the path, or the name on the hub with the commit."""
    parameters: int
    effects: Effects | None
    """None of a policy without pictures and words (sb3)."""
    fingerprint: str
    """First 12 characters of the SHA-256 of the actions on a fixed input."""
    labels: ActionErrors | None
    """Errors against recorded actions; None if unverified."""
    key: str = ""
    """Key of the statistics used, for layouts that may have several."""


def check_settings(layout: Layout, cfg: ImportCfg) -> None:
    """Refuse settings that would be ignored.

    Raises:
        ConfigError: an unknown layout, or a setting that it does not support.
    """
    if layout not in LAYOUTS:
        raise unknown("layout", str(layout), LAYOUTS)
    for name, having in SETTINGS.items():
        if (value := getattr(cfg, name)) and layout not in having:
            raise ConfigError(f"{name} is {value!r} beside layout {layout}: expected it of {' and '.join(having)}")
    if layout in ONE_PICTURE and len(cfg.cameras) > 1:
        raise ConfigError(
            f"cameras are {', '.join(cfg.cameras)} beside layout {layout}: expected one at most, which it sees"
        )
    for name in ("horizon", "state"):
        check_at_least(name, getattr(cfg, name), 0)


def statistics_key(layout: Layout, path: str | Path, cfg: ImportCfg) -> str:
    """Key of the statistics used; "" for layouts that have only one set.

    Raises:
        ConfigError: there are several and no key is given, or the key is unknown.
        DataError: they cannot be read.
    """
    if layout in ("openvla", "openvla-oft"):
        from robotrl.importers.openvla import directory

        return directory.statistics_key(path, cfg.key or None)
    if layout == "openpi":
        from robotrl.importers.openpi import STATS

        return cfg.key or next(found.parent.name for found in (Path(path) / "assets").glob(f"*/{STATS}"))
    return ""


def read_layout(layout: Layout, path: str | Path, specs: Mapping[str, Spec], action: Spec, cfg: ImportCfg) -> Any:
    """Load a policy with the importer of its layout.

    Raises:
        ConfigError: an unknown layout, or a missing or unsupported setting.
        DataError: the directory is invalid; see the importers.
    """
    check_settings(layout, cfg)
    if layout == "sb3":
        from robotrl.importers.sb3 import load_sb3

        return load_sb3(path, specs, action, cfg.stats)
    key, horizon = cfg.key or None, cfg.horizon or None
    camera = next(iter(cfg.cameras.values()), "")
    decoding: Any = "parallel" if layout.endswith("-oft") else "autoregressive"
    if layout in BACKBONES:
        from robotrl.importers.vlm.directory import load_vlm

        return load_vlm(
            path,
            specs,
            action,
            decoding=decoding,
            horizon=horizon or 1,
            state=cfg.state,
            camera=camera,
            template=cfg.template,
            stats=read_dataset(cfg.stats) if cfg.stats else None,
        )
    if layout in ("openvla", "openvla-oft"):
        from robotrl.importers.openvla.directory import load_openvla

        return load_openvla(
            path,
            specs,
            action,
            key=key,
            decoding=decoding,
            horizon=horizon,
            state=cfg.state,
            camera=camera,
        )
    if not cfg.vlm:
        raise ConfigError(f"vlm is not given: expected the directory of the tokenizer, which {layout}'s lack")
    if layout == "lerobot":
        from robotrl.importers.lerobot import load_lerobot

        return load_lerobot(path, specs, action, vlm=cfg.vlm, cameras=cfg.cameras or None, horizon=horizon)
    from robotrl.importers.openpi import load_openpi

    return load_openpi(path, specs, action, tokenizer=cfg.vlm, key=key, cameras=cfg.cameras, horizon=horizon)


def import_policy(
    layout: Layout,
    path: str | Path,
    sim: VecSim,
    out: str | Path,
    cfg: ImportCfg | None = None,
    *,
    dataset: str | Path | None = None,
    tolerance: float = 0.05,
    frames: int = 256,
    accept_data: bool = False,
) -> Imported:
    """Import a policy of another library: check its sensitivity to its inputs and store it as a checkpoint.

    Args:
        layout: layout of the directory.
        path: the directory, or its name on the hub; see `robotrl.importers.hub.fetch`. sb3: a file.
        sim: sim whose observations and actions the policy gets.
        out: the checkpoint's directory, which must not exist yet; `init_from` and `robotrl eval` take it.
        cfg: settings that the directory does not contain.
        dataset: recorded actions to compare with; without, the policy stays unverified.
        tolerance: largest accepted mean error, as a fraction of the action range.
        frames: number of random frames of the dataset.
        accept_data: accept a dataset with doubtful values.

    Raises:
        ConfigError: settings, sim or dataset do not match.
        DataError: the directory is invalid, or the policy fails a check.
    """
    out = Path(out)
    if out.exists():
        raise ConfigError(f"out is {out}: expected a directory that does not exist yet")
    cfg = cfg or ImportCfg()
    check_settings(layout, cfg)
    fetched = Fetched(Path(path), str(path)) if layout in NETWORKS else fetch(path)
    model = fetch(cfg.vlm) if cfg.vlm else None
    cfg = replace(cfg, vlm="" if model is None else str(model.path))
    policy = read_layout(layout, fetched.path, visible(sim), sim.action_spec, cfg)
    key = statistics_key(layout, fetched.path, cfg)
    policy.control_dt_s = sim.control_dt_s
    policy.eval()
    seen = None if layout in NETWORKS else effects(policy)
    found = None
    if dataset is not None:
        recorded = read_dataset(dataset)
        recorded_as = [feature for feature, picture in cfg.cameras.items() if picture and feature in recorded.features]
        columns = {cfg.cameras[feature]: feature for feature in recorded_as}
        found = labels(policy, recorded, frames, columns=columns, accept=accept_data)
        check_labels(found, tolerance)
    tree = policy_tree(policy)
    fingerprint = hashlib.sha256(tree["fingerprint"]["actions"].numpy().tobytes()).hexdigest()[:12]
    parameters = sum(x.numel() for x in policy.parameters())
    origin = {
        "layout": layout,
        "source": fetched.origin,
        "vlm": None if model is None else model.origin,
        "key": key,
        "parameters": parameters,
        "fingerprint": fingerprint,
        "effects": None if seen is None else {**seen.pictures, "words": seen.words},
        "labels": None if found is None else found._asdict(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(out, {"policy": tree, "import": origin}, step=0, kind=STAGE)
    return Imported(out, fetched.origin, parameters, seen, fingerprint, found, key)
