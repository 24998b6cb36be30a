"""Registries: lazy tables from names to "module:attribute", which import nothing until a name is used.

Other packages add rows through the entry-point groups `robotrl.sims`, `robotrl.robots`, `robotrl.robot_sims`,
`robotrl.rewards`, `robotrl.presets`, `robotrl.encoders` and `robotrl.traffic` (name = "module:attribute"), without
changing this file.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any, NamedTuple

from robotrl.errors import ConfigError, RobotrlError, check_at_least, out_of_range, short, unknown
from robotrl.removed_presets import REMOVED_PRESETS
from robotrl.spec.json_fields import check_settings
from robotrl.spec.sim_options import (
    NOT_LOG_ONLY,
    UNPERTURBED,
    HasHistory,
    HasLogOnly,
    HasPerturb,
    SimOptions,
    options_of_factory,
    with_values,
)
from robotrl.utils.installation import install_line


@cache
def _added(group: str, path: tuple[str, ...]) -> EntryPoints:
    """Entry points of a group in all packages of `sys.path`, of which `path` is a copy.

    Cached: with 170 packages a search takes 10 ms, twice the time that making a sim takes.
    """
    return entry_points(group=group)


class Family(NamedTuple):
    """Names with a common prefix, for which one function makes the object from the rest of the name."""

    rest: str
    """Description of the rest of the name, for messages."""
    target: str
    """ "module:function", which is called with the rest of the name."""


class Table:
    """Lazy table from names to objects of one kind.

    Args:
        kind: name of the kind in errors ("sim", "robot").
        rows: name to "module:attribute".
        group: entry-point group through which other packages add rows.
        families: prefix to family; for "gym/Hopper-v5" the function of the family "gym/" is called with "Hopper-v5".
        removed: former name to its replacement, for messages.
    """

    def __init__(
        self,
        kind: str,
        rows: dict[str, str],
        group: str,
        families: dict[str, Family] | None = None,
        removed: dict[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.removed = removed or {}
        self.group = group
        self.families = families or {}
        self._rows = rows

    def rows(self) -> dict[str, str]:
        """All rows, including those of other packages; robotrl's own rows take precedence."""
        found = {point.name: point.value for point in _added(self.group, tuple(sys.path))}
        return {**found, **self._rows}

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self.rows())

    def check(self, name: str) -> str:
        """Return `name` if it is known.

        Raises:
            ConfigError: the name is unknown; its replacement or the nearest known one is suggested.
        """
        if name not in self.rows() and self._family(name) is None:
            if name in self.removed:
                raise ConfigError(f"{self.kind} {name!r} was removed: expected {self.removed[name]}")
            families = (f"{start}{family.rest}" for start, family in self.families.items())
            raise unknown(self.kind, name, [*self.names(), *families])
        return name

    def _family(self, name: str) -> str | None:
        """Family prefix of `name`, if it has one."""
        return next((start for start in self.families if name.startswith(start) and name != start), None)

    def load(self, name: str) -> Any:
        """Import and return the object named `name`.

        Raises:
            ConfigError: the name is unknown, or a package that it needs is not installed.
        """
        rows, start = self.rows(), self._family(self.check(name))
        if start is not None and name not in rows:
            return self._import(name, self.families[start].target)(name.removeprefix(start))
        return self._import(name, rows[name])

    def _import(self, name: str, target: str) -> Any:
        module, _, attribute = target.partition(":")
        package = None if name in self._rows else self._package(name)
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            top = str(error.name).split(".")[0]
            if package is not None and top not in EXTRA_OF_MODULE:
                raise self._broken(name, package, error) from error
            if top == "robotrl":
                raise
            extra = EXTRA_OF_MODULE.get(top, "train")
            raise ConfigError(f"{self.kind} {name!r} needs the module {error.name!r}: {install_line(extra)}") from error
        except Exception as error:  # code of others
            if package is None:
                raise
            raise self._broken(name, package, error) from error

    def _package(self, name: str) -> str | None:
        """Distribution that adds the row `name`; None for a name that no package adds."""
        added = (point.dist for point in _added(self.group, tuple(sys.path)) if point.name == name)
        return next((dist.name for dist in added if dist is not None), None)

    def _broken(self, name: str, package: str, error: Exception) -> ConfigError:
        message = " ".join(str(error).split()) or "no message"
        return ConfigError(
            f"{self.kind} {name!r} of the package {package!r} cannot be imported: {type(error).__name__}:"
            f" {short(message)}"
        )


EXTRA_OF_MODULE = {
    "carla": "carla",
    "mcap": "mcap",
    "cryptography": "sign",
    "carla_driver_interface": "driver",
    "msgpack": "carla",
    "mujoco": "mujoco",
    "open_clip": "clip",
    "torch": "train",
    "gymnasium": "train",
    "onnxscript": "train",
    "numba": "train",
    "numba_cuda": "cuda",
    "transformers": "vla",
    "tokenizers": "vla",
    "av": "video",
    "peft": "vla",
    "ray": "ray",
    "huggingface_hub": "vla",
    "viser": "viewer",
    "trimesh": "viewer",
    "wandb": "wandb",
    "websockets": "remote",
}
"""Module name to the robotrl extra that installs it."""

SIMS = Table(
    "sim",
    {
        "bev/drive": "robotrl.sims.bev.sim:DriveCfg",
        "bev/warp": "robotrl.sims.warp.sim:WarpCfg",
        "mujoco/ant": "robotrl.sims.mujoco.locomotion.ant:AntCfg",
        "mujoco/halfcheetah": "robotrl.sims.mujoco.locomotion.halfcheetah:HalfCheetahCfg",
        "mujoco/hopper": "robotrl.sims.mujoco.locomotion.hopper:HopperCfg",
        "mujoco/humanoid": "robotrl.sims.mujoco.locomotion.humanoid:HumanoidCfg",
        "mujoco/walker2d": "robotrl.sims.mujoco.locomotion.walker2d:Walker2dCfg",
        "mujoco/peg-insert": "robotrl.sims.mujoco.manipulation.sims:PegInsertCfg",
        "mujoco/pick-place": "robotrl.sims.mujoco.manipulation.sims:PickPlaceCfg",
        "mujoco/press": "robotrl.sims.mujoco.manipulation.sims:PressCfg",
        "mujoco/tabletop": "robotrl.sims.mujoco.tabletop.sim:TabletopCfg",
        "mujoco/push": "robotrl.sims.mujoco.manipulation.sims:PushCfg",
        "mujoco/quadruped-velocity": "robotrl.sims.mujoco.quadruped.velocity:QuadrupedCfg",
        "mujoco/reach": "robotrl.sims.mujoco.manipulation.sims:ReachCfg",
    },
    "robotrl.sims",
    {
        "carla/": Family("TOWN", "robotrl.sims.carla.make:family"),
        "gym/": Family("ID", "robotrl.sims.gymnasium_sim.make:family"),
        "isaac/": Family("MODULE:FUNCTION", "robotrl.sims.isaac.make:family"),
        "remote/": Family("NAME", "robotrl.sims.remote.make:family"),
    },
)
"""Config classes of sims (`robotrl.spec.sim_options.SimOptions`); rows of other packages may also be functions
`make(num_envs, seed, *, ...)`."""

ROBOTS = Table("robot", {"sim": "robotrl.deploy.robots.sim_robot:main"}, "robotrl.robots")
"""Robot drivers: `main(link, argument)` runs in a separate process; selected by `--robot NAME:ARGUMENT`."""

ROBOT_SIMS = Table(
    "simulated robot",
    {
        "mujoco/peg-insert": "robotrl.sims.mujoco.manipulation.peg_insert:make_robot",
        "mujoco/pick-place": "robotrl.sims.mujoco.manipulation.pick_place:make_robot",
        "mujoco/press": "robotrl.sims.mujoco.manipulation.press:make_robot",
        "mujoco/push": "robotrl.sims.mujoco.manipulation.push:make_robot",
        "mujoco/quadruped-velocity": "robotrl.sims.mujoco.quadruped.velocity:make_robot",
        "mujoco/reach": "robotrl.sims.mujoco.manipulation.reach:make_robot",
    },
    "robotrl.robot_sims",
)
"""Factories `make_robot(seed) -> RobotSim` (see `deploy/robots/driver.py`), without torch; selected by `--robot
sim:NAME`."""

POLICIES = Table(
    "policy",
    {
        "beta": "robotrl.policies.beta:BetaPolicy",
        "best-of": "robotrl.policies.best_of:BestOfPolicy",
        "by-action": "robotrl.policies.by_action:ByActionCfg",
        "categorical": "robotrl.policies.categorical:CategoricalPolicy",
        "conditioned": "robotrl.policies.conditioned:ConditionedClosedFormPolicy",
        "conditioned-chain": "robotrl.policies.conditioned:ConditionedChainPolicy",
        "diffusion": "robotrl.policies.diffusion:DiffusionPolicy",
        "flow": "robotrl.policies.flow:FlowPolicy",
        "flow-vla": "robotrl.policies.vla.flow:FlowVlaPolicy",
        "gaussian": "robotrl.policies.gaussian:GaussianPolicy",
        "guarded": "robotrl.policies.guarded:GuardedPolicy",
        "guided": "robotrl.policies.guided:GuidedPolicy",
        "openvla": "robotrl.policies.vla.pretrained:OpenVlaPolicy",
        "path-speed": "robotrl.policies.path_speed:PathSpeedPolicy",
        "pi0": "robotrl.policies.vla.pretrained_flow:Pi0Policy",
        "smolvla": "robotrl.policies.vla.pretrained_flow:SmolVlaPolicy",
        "recurrent": "robotrl.policies.recurrent:RecurrentPolicy",
        "recurrent-beta": "robotrl.policies.recurrent:RecurrentBetaPolicy",
        "recurrent-categorical": "robotrl.policies.recurrent:RecurrentCategoricalPolicy",
        "reranked": "robotrl.policies.reranked:RerankedPolicy",
        "residual": "robotrl.policies.residual:ResidualPolicy",
        "squashed": "robotrl.policies.squashed:SquashedPolicy",
        "shortcut": "robotrl.policies.shortcut:ShortcutPolicy",
        "staged": "robotrl.policies.staged:StagedPolicy",
        "steered": "robotrl.policies.steered:SteeredPolicy",
        "step-residual": "robotrl.policies.step_residual:StepResidualPolicy",
        "token-vla": "robotrl.policies.vla.token:TokenVlaPolicy",
        "vlm": "robotrl.policies.vla.pretrained_vlm:VlmPolicy",
    },
    "robotrl.policies",
)
"""Policy classes with `from_json` and, if they can be trained from scratch, their config class `Cfg`; or a config class
that chooses a policy."""

ALGORITHMS = Table(
    "algorithm",
    {
        "bc": "robotrl.algos.bc:BcCfg",
        "dagger": "robotrl.algos.dagger:DaggerCfg",
        "distill": "robotrl.algos.distill:DistillCfg",
        "dppo": "robotrl.algos.dppo:DppoCfg",
        "dsrl": "robotrl.algos.dsrl:DsrlCfg",
        "dsrl-na": "robotrl.algos.dsrl_na:DsrlNaCfg",
        "flow-grpo": "robotrl.algos.flow_grpo:FlowGrpoCfg",
        "flow-noise": "robotrl.algos.flow_noise:FlowNoiseCfg",
        "flow-sde": "robotrl.algos.flow_sde:FlowSdeCfg",
        "fql": "robotrl.algos.fql:FqlCfg",
        "gorl": "robotrl.algos.gorl:GorlCfg",
        "grpo": "robotrl.algos.grpo:GrpoCfg",
        "iql": "robotrl.algos.iql:IqlCfg",
        "opd": "robotrl.algos.opd:OpdCfg",
        "pa-rl": "robotrl.algos.pa_rl:PaRlCfg",
        "perlad": "robotrl.algos.perlad:PerladCfg",
        "ppo": "robotrl.algos.ppo:PpoCfg",
        "pretrain": "robotrl.algos.pretrain:PretrainCfg",
        "qc": "robotrl.algos.qc:QcCfg",
        "rad2": "robotrl.algos.rad2:Rad2Cfg",
        "recap": "robotrl.algos.recap:RecapCfg",
        "reflex": "robotrl.algos.reflex:ReflexCfg",
        "reinflow": "robotrl.algos.reinflow:ReinFlowCfg",
        "residual": "robotrl.algos.residual:ResidualCfg",
        "rl100": "robotrl.algos.rl100:Rl100Cfg",
        "rl100-online": "robotrl.algos.rl100_online:Rl100OnlineCfg",
        "rlpd": "robotrl.algos.rlpd:RlpdCfg",
        "sac": "robotrl.algos.sac:SacCfg",
        "td3-bc": "robotrl.algos.td3_bc:Td3BcCfg",
        "vla-rl": "robotrl.algos.vla_rl:VlaRlCfg",
    },
    "robotrl.algorithms",
)
"""Config classes of algorithms (`robotrl.learners.learner.LearnerCfg`)."""

REWARDS = Table(
    "reward",
    {
        "action-alignment": "robotrl.rewards.action_alignment:ActionAlignmentCfg",
        "action-rate": "robotrl.rewards.rules:ActionRateCfg",
        "action-size": "robotrl.rewards.rules:ActionSizeCfg",
        "alive": "robotrl.rewards.rules:AliveCfg",
        "contrast": "robotrl.rewards.contrast:ContrastCfg",
        "dual-pathway": "robotrl.rewards.dual_pathway.dual_pathway:DualPathwayCfg",
        "episode-similarity": "robotrl.rewards.episode_similarity:EpisodeSimilarityCfg",
        "function": "robotrl.rewards.function:FunctionRewardCfg",
        "goal-baseline": "robotrl.rewards.goal_baseline:GoalBaselineCfg",
        "lord": "robotrl.rewards.lord:LordCfg",
        "preferences": "robotrl.rewards.preferences.preferences:PreferencesCfg",
        "process": "robotrl.rewards.process:ProcessRewardCfg",
        "progress": "robotrl.rewards.progress:ProgressRewardCfg",
        "step-penalty": "robotrl.rewards.rules:StepPenaltyCfg",
        "success": "robotrl.rewards.success:SuccessRewardCfg",
        "task": "robotrl.rewards.task:TaskRewardCfg",
        "threshold": "robotrl.rewards.threshold:ThresholdCfg",
        "vlm-score": "robotrl.rewards.served.vlm_score:VlmScoreCfg",
    },
    "robotrl.rewards",
)
"""Settings of reward sources, frozen dataclasses with `build`; see `robotrl/rewards/source.py`."""

METHODS = Table(
    "method",
    {
        "pa-rl": "robotrl.improve.methods.pa_rl:METHOD",
        "recap": "robotrl.improve.methods.recap:METHOD",
        "rl100": "robotrl.improve.methods.rl100:METHOD",
        "successes": "robotrl.improve.methods.successes:METHOD",
    },
    "robotrl.methods",
)
"""Methods of `robotrl improve`; see `robotrl/improve/methods/base.py`."""

ENCODERS = Table(
    "encoder",
    {"policy": "robotrl.learners.episode_encoders:own"},
    "robotrl.encoders",
    {
        "run:": Family("PATH", "robotrl.learners.episode_encoders:of_run"),
        "places:": Family("KEY,KEY", "robotrl.learners.episode_encoders:of_places"),
    },
)
"""Factories `make(policy, observation_spec) -> nn.Module`; see `robotrl/learners/episode_encoders.py`."""

TRAFFIC = Table(
    "traffic population",
    {
        "aggressive": "robotrl.sims.driving.traffic.populations:aggressive",
        "cloned": "robotrl.sims.bev.traffic.learned.shipped:cloned",
        "erratic": "robotrl.sims.driving.traffic.populations:erratic",
        "moderate": "robotrl.sims.driving.traffic.populations:moderate",
        "rift": "robotrl.sims.bev.traffic.learned.shipped:rift",
        "self-play": "robotrl.sims.bev.traffic.learned.shipped:self_play",
        "timid": "robotrl.sims.driving.traffic.populations:timid",
    },
    "robotrl.traffic",
)
"""Populations of traffic in `bev/drive`: functions that return a `Population`, or the folder of one that a network
drives; selected by `--sim.traffic NAME`."""

PRESETS = Table(
    "preset",
    {
        "gym-ppo": "robotrl.configs.gymnasium:ppo",
        "gym-sac": "robotrl.configs.off_policy:gym_sac",
        "peg-insert-dagger": "robotrl.configs.peg_insert:dagger",
        "peg-insert-reinflow": "robotrl.configs.peg_insert:reinflow",
        "peg-insert-dsrl": "robotrl.configs.steering:peg_insert_dsrl",
        "peg-insert-dsrl-na": "robotrl.configs.steering:peg_insert_dsrl_na",
        "tabletop-vision": "robotrl.configs.tabletop:vision",
        "tabletop-grounding": "robotrl.configs.tabletop:grounding",
        "tabletop-bc-token": "robotrl.configs.tabletop:bc_token",
        "tabletop-bc-flow": "robotrl.configs.tabletop:bc_flow",
        "tabletop-grpo": "robotrl.configs.tabletop:grpo",
        "tabletop-reinflow": "robotrl.configs.tabletop:reinflow",
        "tabletop-flow-grpo": "robotrl.configs.tabletop:flow_grpo",
        "simplevla-rl": "robotrl.configs.recipes:simplevla_rl",
        "srpo": "robotrl.configs.recipes:srpo",
        "vla-rl": "robotrl.configs.recipes:vla_rl",
        "vla-opd": "robotrl.configs.recipes:vla_opd",
        "pi-rl": "robotrl.configs.recipes:pi_rl",
        "pi-rl-noise": "robotrl.configs.recipes:pi_rl_noise",
        "quadruped-velocity-ppo": "robotrl.configs.quadruped:ppo",
        "drive-bc-diffusion": "robotrl.configs.planner:bc_diffusion",
        "drive-bc-flow": "robotrl.configs.planner:bc_flow",
        "drive-dppo": "robotrl.configs.planner:dppo",
        "drive-dsrl": "robotrl.configs.planner:dsrl",
        "drive-flow-grpo": "robotrl.configs.planner:flow_grpo",
        "drive-ppo": "robotrl.configs.driving:drive_ppo",
        "drive-ppo-raster": "robotrl.configs.driving:drive_ppo_raster",
        "drive-reinflow": "robotrl.configs.planner:reinflow",
        "halfcheetah-ppo": "robotrl.configs.locomotion:halfcheetah_ppo",
        "hopper-ppo": "robotrl.configs.locomotion:hopper_ppo",
        "peg-insert-rlpd": "robotrl.configs.off_policy:peg_insert_rlpd",
        "peg-insert-fql-online": "robotrl.configs.off_policy:peg_insert_fql_online",
    },
    "robotrl.presets",
    removed=REMOVED_PRESETS,
)
"""Functions that return a fresh training config: recipes that were tuned."""


MOST_ENVS = 1 << 20
"""Maximum number of envs of one sim. More would exhaust memory, and the system might kill the process."""


def check_num_envs(field: str, value: int) -> None:
    """Check the number of environments.

    Raises:
        ConfigError: it is below 1, or above `MOST_ENVS`.
    """
    check_at_least(field, value, 1)
    if value > MOST_ENVS:
        raise out_of_range(field, value, f"{MOST_ENVS:,} or fewer")


def make_sim(name: str, num_envs: int = 64, seed: int = 0, **options: Any) -> Any:
    """Make the batched sim named `name`.

    Args:
        name: a row of `robotrl list sims`, e.g. "mujoco/peg-insert".
        num_envs: number of parallel environments, 1 or more.
        seed: seeds every random stream of the sim.
        options: fields of that sim's config, listed on its docs page.

    Raises:
        ConfigError: unknown name or option, or a value out of range.
    """
    check_num_envs("num_envs", num_envs)
    return build_sim(sim_options(name, options), num_envs, seed)


def sim_options(name: str, values: Mapping[str, Any] | None = None) -> SimOptions:
    """Config of the sim named `name`, with some fields set.

    Args:
        name: a row of `robotrl list sims`.
        values: field name to value; see `robotrl.spec.sim_options.with_values` for the accepted forms.

    Raises:
        ConfigError: unknown name or option.
    """
    row = SIMS.load(name)
    default = row if is_dataclass(row) else options_of_factory(row)
    return with_values(default, values or {}, f"sim {name!r}")


def build_sim(options: SimOptions, num_envs: int, seed: int) -> Any:
    """Build a sim from its config, which may come from Python or JSON and hold values of wrong types.

    Raises:
        ConfigError: a value of a wrong type or out of range.
    """
    try:
        sim = options.build(num_envs, seed)
    except RobotrlError:  # the sim's own message is more precise than a type check
        raise
    except Exception:
        # a wrong type can fail anywhere
        check_settings(options)
        raise
    try:
        check_settings(options)
        if isinstance(options, HasPerturb) and options.perturb != UNPERTURBED:
            sim = importlib.import_module("robotrl.sims.perturbation").perturbed(sim, options.perturb, seed)
        if isinstance(options, HasHistory) and options.history != 1:
            # outside the faults: a policy remembers what it was given
            sim = importlib.import_module("robotrl.sims.history").remembered(sim, options.history)
        if isinstance(options, HasLogOnly) and options.log_only != NOT_LOG_ONLY:
            sim = importlib.import_module("robotrl.sims.log_only").log_only(sim, options.log_only, seed)
    except RobotrlError:
        sim.close()
        raise
    return sim
