"""What all methods of policy gradient through the chain hold: the ratio is 1, and the policy fits the sim."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robotrl.algos.dppo import DppoCfg
from robotrl.algos.flow_noise import FlowNoiseCfg
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.algos.rl100_online import Rl100OnlineCfg
from robotrl.cli.main import main
from robotrl.engine.muon import RMS
from robotrl.errors import ConfigError
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import changed, load_policy
from robotrl.spec import Spec
from tests.algos.test_ppo import Watched
from tests.kits.learner_kit import ACTION, DIFFUSION, FLOW, SHORTCUT, SMALL, SPECS, TRANSFORMS, flow, same, setup
from tests.kits.walk_sim import Walk
from tests.training.test_resume import make_clone

SETTINGS = {**SMALL, "num_steps": 4, "epochs": 1, "minibatch": 16, "critic_warmup_env_steps": 0}
METHODS = {
    "reinflow": ReinFlowCfg(**SETTINGS, entropy_coef=0.01),
    "flow-noise": FlowNoiseCfg(**SETTINGS),
    "flow-sde": FlowSdeCfg(**SETTINGS),
    "dppo": DppoCfg(**SETTINGS),
    "dppo-ddim": DppoCfg(**SETTINGS, eta=0.0),
    "rl100-online": Rl100OnlineCfg(**SETTINGS),
    "dppo-last-steps": DppoCfg(**SETTINGS, tuned_steps=2, bc_coef=0.1),
}
POLICIES = {"flow": FLOW, "shortcut": SHORTCUT, "diffusion": DIFFUSION}
PICTURE = Spec((8, 8, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8")
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
BF16_RATIO = 2e-3


class Seen(Walk):
    """A walk that is looked at: the picture's brightness is the place."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.observation_spec = {**self.observation_spec, "camera": PICTURE}

    def _look(self, obs):
        light = (obs["walk"][:, :1] * 60 + 128).clamp(0, 255).to(torch.uint8)
        return {**obs, "camera": light[:, :, None, None].expand(-1, 8, 8, 3).reshape(-1, 8, 8, 3)}

    def reset(self, seed=None, options=None):
        return self._look(super().reset(seed, options))

    def step(self, actions):
        out = super().step(actions)
        return out._replace(obs=self._look(out.obs), final_obs=self._look(out.final_obs))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("kind", list(POLICIES))
@pytest.mark.parametrize("method", list(METHODS))
def test_the_ratio_is_one_before_the_first_update(method, kind, dtype):
    torch.manual_seed(0)
    policy = POLICIES[kind].build(SPECS, ACTION, TRANSFORMS).to(dtype)
    learner = METHODS[method].build(setup(policy))
    scalars = learner.iterate()
    assert scalars["ratio_error"] <= TOLERANCE[dtype]
    # and it was no idle iteration
    assert scalars["actor_updates"] > 1
    assert scalars["approx_kl"] > 0


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("method", list(METHODS))
def test_the_ratio_is_one_with_an_encoder_that_learns(method, dtype):
    torch.manual_seed(0)
    cfg = replace(FLOW, image_channels=(4, 8), image_features=6)
    policy = cfg.build({**SPECS, "camera": PICTURE}, ACTION, TRANSFORMS).to(dtype)
    learner = METHODS[method].build(setup(policy)._replace(make_sim=lambda: Seen(16)))
    encoder = next(learner.loss.policy.encoders.parameters())
    before = encoder.detach().clone()
    assert learner.iterate()["ratio_error"] <= TOLERANCE[dtype]
    assert not torch.equal(before, encoder)


@pytest.mark.parametrize("method", list(METHODS))
def test_chains_begin_from_as_much_noise_as_asked(method):
    """The same draws, a quarter of them; the ratio stays 1."""

    def begun(start_noise):
        torch.manual_seed(0)
        made = replace(METHODS[method], start_noise=start_noise).build(setup(flow()))
        obs = made.sim.reset(0)
        return made, made.loss.decide(obs, torch.Generator().manual_seed(1)).record["chain"][:, 0]

    (_, whole), (learner, part) = begun(1.0), begun(0.25)
    if method == "dppo-last-steps":
        # what is recorded begins where the frozen copy has taken the noise
        assert not torch.allclose(part, whole)
    else:
        assert torch.allclose(part, 0.25 * whole)
    assert learner.iterate()["ratio_error"] <= TOLERANCE[torch.float32]
    assert not begun(0.0)[1].any() or method == "dppo-last-steps"


@pytest.mark.parametrize("method", list(METHODS))
def test_other_noise_in_training_than_when_deployed_is_told(method):
    """A planner fine-tuned without initial noise and deployed with it drove worse than its clone."""
    with pytest.warns(
        UserWarning, match=r"deviation 0\.25 \(algo\.start_noise\), and the policy is deployed with 1 \("
    ):
        replace(METHODS[method], start_noise=0.25).build(setup(flow()))
    policy = changed(flow(), {"deploy_noise": 0.25})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replace(METHODS[method], start_noise=0.25).build(setup(policy))


@pytest.mark.parametrize("method", list(METHODS))
def test_matrices_of_the_actor_move_by_muon_and_the_critic_does_not(method):
    """Singular values of a step of Muon are at most 1.2 of its rate, the largest are near it; a first step of Adam has
    the rate in each element."""
    torch.manual_seed(0)
    cfg = replace(METHODS[method], muon=10.0, lr=1e-4, minibatch=4096, epochs=1)
    policy = replace(FLOW, hidden=(32, 32, 32)).build(SPECS, ACTION, TRANSFORMS)
    learner = cfg.build(setup(policy))
    net = {name: x for name, x in learner.loss.actor["policy"].named_parameters() if x.shape == (32, 32)}
    critic = {name: x for name, x in learner.loss.critic.named_parameters() if x.dim() == 2}
    before = {name: x.detach().clone() for name, x in {**net, **critic}.items()}
    learner.iterate()
    for name, x in net.items():
        sizes = torch.linalg.svdvals(x.detach() - before[name]) / (cfg.muon * cfg.lr * RMS * 32**0.5)
        assert sizes[0] < 1.25 and sizes[4] > 0.65, name
    for name, x in critic.items():
        assert (x.detach() - before[name]).abs().max() <= 1.01 * cfg.critic_lr, name


@pytest.mark.parametrize("kind", [*POLICIES, "unet", "transformer"])
@pytest.mark.parametrize("method", list(METHODS))
def test_in_bfloat16_it_acts_as_it_learns(method, kind):
    """The ratio is of one precision: 1 but for products that round otherwise among other rows."""
    torch.manual_seed(0)
    cfg = POLICIES[kind] if kind in POLICIES else replace(FLOW, network=kind, hidden=(16, 16))
    learner = replace(METHODS[method], bf16=True).build(setup(cfg.build(SPECS, ACTION, TRANSFORMS)))
    computed = list[torch.dtype]()
    layer = next(m for m in learner.loss.policy.net.modules() if isinstance(m, torch.nn.Linear))
    hook = layer.register_forward_hook(lambda module, inputs, out: computed.append(out.dtype))
    scalars = learner.iterate()
    hook.remove()
    assert scalars["ratio_error"] <= BF16_RATIO
    assert scalars["actor_updates"] > 1 and scalars["approx_kl"] > 0
    assert torch.bfloat16 in computed
    assert {p.dtype for p in learner.loss.parameters()} == {torch.float32}


def test_the_critic_does_not_teach_the_encoder():
    torch.manual_seed(0)
    cfg = replace(FLOW, image_channels=(4,), image_features=6)
    policy = cfg.build({**SPECS, "camera": PICTURE}, ACTION, TRANSFORMS)
    method = replace(METHODS["reinflow"], critic_warmup_env_steps=1)
    learner = method.build(setup(policy)._replace(make_sim=lambda: Seen(16)))
    before = [p.detach().clone() for p in policy.parameters()]
    learner.iterate()
    assert same(before, list(policy.parameters()))


@pytest.mark.timeout(600)
def test_compiled_and_eager_iterations_agree():
    """With the noise bound, a constant of the graph, moving in between. Each layer takes the compiler seconds."""
    found = []
    for engine in ("eager", "compiled"):
        cfg = replace(METHODS["reinflow"], engine=engine, noise_hold=0.0, noise_end=0.0, critic_hidden=(16,))
        torch.manual_seed(0)
        policy = replace(FLOW, denoising_steps=2, hidden=(16,)).build(SPECS, ACTION, TRANSFORMS)
        learner = cfg.build(setup(policy))
        scalars = [learner.iterate() for _ in range(2)]
        assert scalars[0]["ratio_error"] <= 1e-5
        found.append((scalars, list(learner.loss.parameters())))
    (eager, parameters), (compiled, others) = found
    for one, other in zip(eager, compiled, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
    for one, other in zip(parameters, others, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


class Other(Walk):
    """A walk that differs from what the policies were made for."""

    def __init__(self, **changes) -> None:
        super().__init__(4)
        self.__dict__.update(changes)


TIMED = replace(SPECS["walk"], names=("pos_x_w", "clock"))


@pytest.mark.parametrize(
    ("sim", "said"),
    [
        (
            Other(action_spec=Spec((2,), ("a", "b"), ("m", "m"), (-1.0,) * 2, (1.0,) * 2)),
            r"for actions of shape \(1,\): sim Other has \(2,\)",
        ),
        (Other(action_spec=replace(ACTION, high=(2.0,))), r"for actions of high \(1.0,\): sim Other has \(2.0,\)"),
        (Other(observation_spec={"walk": TIMED}), r"'walk' of names \('pos_x_w', 'time'\): sim Other has .*'clock'"),
        (Other(observation_spec={"gait": SPECS["walk"]}), "policy observes 'walk': sim Other has gait"),
        (Other(control_dt_s=0.05), "trained at 10 Hz: sim Other runs at 20 Hz"),
    ],
)
def test_a_sim_that_the_policy_was_not_trained_for_is_refused(sim, said):
    policy = flow()
    policy.control_dt_s = 0.1
    with pytest.raises(ConfigError, match=said):
        METHODS["reinflow"].build(setup(policy)._replace(make_sim=lambda: sim))


def test_a_loss_that_diverges_ends_the_command_and_the_last_checkpoint_stays(tmp_path: Path, capsys):
    make_clone(tmp_path / "clone", horizon=4)
    run = tmp_path / "run"
    words = ["train", "peg-insert-reinflow", "--init-from", str(tmp_path / "clone"), "--run-dir", str(run)]
    words += ["--sim.num-envs", "4", "--algo.num-steps", "8", "--algo.minibatch", "4", "--algo.env-steps", "96"]
    words += ["--algo.critic-warmup-env-steps", "1", "--algo.lr", "1e30", "--checkpoint-every-env-steps", "32"]
    words += ["--evaluation.episodes", "4", "--evaluation.num-envs", "4", "--evaluation.every", "0"]
    assert main(words) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "iteration 2, minibatch" in said
    assert "the last checkpoint is intact" in said
    assert [row["step"] for row in read_scalars(run / "scalars.jsonl")] == [1]
    latest = Run.open(run).latest()
    assert latest is not None
    assert latest.step == 1
    assert same(load_policy(run).state_dict(), load_policy(tmp_path / "clone").state_dict())


def test_what_is_privileged_reaches_the_critic_and_not_the_policy():
    learner = METHODS["reinflow"].build(setup(flow())._replace(make_sim=lambda: Watched(16)))
    assert learner.loss.policy.context_width == 2
    assert learner.loss.critic.net.net.layers[0].in_features == 4
    assert learner.iterate()["ratio_error"] <= 1e-5
    # normalised by now
    seen = learner.loss.critic.encode({"secret": torch.full((1, 2), 101.0)}, torch.zeros(1, 2))
    assert seen.abs().max() < 6


def test_arrays_that_nobody_looks_at_are_not_kept():
    learner = METHODS["reinflow"].build(setup(flow())._replace(make_sim=lambda: Seen(16)))
    batch, _ = learner.collect()
    assert set(batch.obs) == {"walk"}
