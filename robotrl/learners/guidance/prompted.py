"""Suggestions of a served vision-language model, which sees the scene and answers when it has thought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, out_of_range, short, unknown
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.learners.guidance.suggester import Suggestions
from robotrl.rewards.endpoint.client import ChatEndpoint
from robotrl.rewards.endpoint.replies import ChoiceReply, NumbersReply, ReplySchema
from robotrl.rewards.scoring.ledger import Answers
from robotrl.spec import Arrays, HasCamera, Spec, VecSim, is_picture

COLORS = 3


class NamedAction(NamedTuple):
    """An action that a model may choose."""

    name: str
    action: tuple[float, ...]
    """(A,) in the sim's units."""


class PromptedSuggester:
    """Asks a vision-language model about the picture of each env; a `Suggester` that is always late.

    An answer belongs to the step that it was asked for, however late it comes. Envs are asked every `every` steps, as
    many as there is room for, in turn.

    Args:
        cfg: settings; its `by` is "endpoint".
        sim: the training sim.

    Raises:
        ConfigError: a setting is out of range, or does not fit the sim.
        CapabilityError: the sim has no picture.
        DataError: the directory of answers cannot be used.
    """

    def __init__(self, cfg: GuidanceCfg, sim: VecSim) -> None:
        self._cfg = cfg
        spec = sim.action_spec
        self._named = tuple(named_action(text, spec) for text in cfg.actions)
        self._look = SceneView(sim, cfg.view, cfg.pixels)
        self._prompt = prompt_of(cfg.prompt, self._named, spec)
        self._width = spec.shape[0]
        self._endpoint = ChatEndpoint(cfg.endpoint, reply_of(self._named, spec), "algo.guidance.endpoint")
        self._step = 0
        self._turn = 0

    def suggest(self, obs: Arrays, started: Tensor, tickets: Tensor) -> Tensor:
        """See `Suggester`; asks, and returns nothing yet."""
        del started
        self._step += 1
        if (self._step - 1) % self._cfg.every == 0:
            envs = self._asked(len(tickets))
            if len(envs):  # a picture of an env that cannot be asked about would be drawn for nothing
                self._endpoint.submit(tickets[envs].numpy(), [self._prompt] * len(envs), self._look(obs, envs))
        return torch.full((len(tickets), self._width), torch.nan)

    def _asked(self, count: int) -> Tensor:
        """Envs (n,) of `count` to ask about; those that are left out come first the next time."""
        envs, room = torch.arange(count), self._endpoint.room
        if count <= room:
            return envs
        envs = envs.roll(-self._turn)[:room]
        self._turn = (self._turn + room) % count
        return envs

    def arrived(self, limit_s: float = 0.0) -> Suggestions:
        """See `Suggester`; invalid answers are left out."""
        answers = self._endpoint.wait(limit_s) if limit_s > 0 else self._endpoint.collect()
        valid = answers.valid
        return Suggestions(torch.from_numpy(answers.tickets[valid]), torch.from_numpy(self._actions(answers)[valid]))

    def _actions(self, answers: Answers) -> NDArray[np.float32]:
        """(n, A) of answers; rows that are not valid are arbitrary."""
        if not self._named:
            return answers.outputs
        table = np.array([one.action for one in self._named], np.float32)
        chosen = np.where(answers.valid, answers.outputs[:, 0], 0).astype(np.int64)
        return table[chosen]

    def metrics(self) -> dict[str, float]:
        """See `Suggester`."""
        return self._endpoint.metrics()

    def state(self) -> dict[str, Any]:
        """See `Suggester`: what was paid. Requests under way are not kept: their steps have no suggestion."""
        return {"step": self._step, "turn": self._turn, "paid": self._endpoint.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Suggester`."""
        # tickets of before stand for other steps from now on
        self._endpoint.forget_all()
        # version 0.1 knew no turns
        self._step, self._turn = int(state["step"]), int(state.get("turn", 0))
        self._endpoint.load(state["paid"])

    def close(self) -> None:
        """See `Suggester`."""
        self._endpoint.close()


class SceneView:
    """Pictures of the scenes before a step: an observed picture, or a camera's.

    Args:
        sim: the sim.
        view: key of an observation or name of a camera; None: the first.
        pixels: width and height of a camera's picture.

    Raises:
        CapabilityError: the sim has neither.
        ConfigError: there is none of this name.
    """

    def __init__(self, sim: VecSim, view: str | None, pixels: int) -> None:
        observed = [k for k, spec in sim.observation_spec.items() if is_picture(spec) and spec.shape[-1] == COLORS]
        cameras = list(sim.cameras) if isinstance(sim, HasCamera) else []
        if not observed and not cameras:
            raise CapabilityError(
                f"sim {type(sim).__name__} has no picture in color, observed or of a camera: a vision-language model"
                " cannot see it"
            )
        name = [*observed, *cameras][0] if view is None else view
        if name not in (*observed, *cameras):
            raise unknown("algo.guidance.view", name, [*observed, *cameras])
        self._key = name if name in observed else None
        self._camera, self._pixels, self._sim = name, pixels, sim

    def __call__(self, obs: Arrays, envs: Tensor) -> NDArray[np.uint8]:
        """Pictures (n, h, w, 3) of envs (n,)."""
        if self._key is not None:
            return obs[self._key].cpu()[envs].numpy()
        assert isinstance(self._sim, HasCamera)
        return self._sim.render(envs.tolist(), self._camera, self._pixels, self._pixels)


def named_action(text: str, spec: Spec) -> NamedAction:
    """Read "name=number,number,...".

    Raises:
        ConfigError: it is of another form, has another number of numbers, or one out of the action's bounds.
    """
    field, width = "algo.guidance.actions", spec.shape[0]
    name, _, numbers = text.partition("=")
    expected = f"NAME={','.join(spec.names)}, {width} numbers"
    try:
        action = tuple(float(number) for number in numbers.split(","))
    except ValueError:
        raise out_of_range(field, text, expected) from None
    if not name.strip() or len(action) != width:
        raise out_of_range(field, text, expected)
    for at, (value, low, high) in enumerate(zip(action, spec.low, spec.high, strict=True)):
        if not low <= value <= high:
            raise ConfigError(
                f"{field} is {short(repr(text))}: {spec.names[at]} is {value:g}: expected {low:g} to {high:g}"
            )
    return NamedAction(name.strip(), action)


def reply_of(named: Sequence[NamedAction], spec: Spec) -> ReplySchema:
    """Form of the answer: one of the named actions, or the numbers of an action.

    Raises:
        ConfigError: one named action alone, or names that repeat.
    """
    if not named:
        return NumbersReply(tuple(spec.low), tuple(spec.high))
    names = [one.name for one in named]
    if len(names) < 2 or len(set(names)) < len(names):
        raise out_of_range("algo.guidance.actions", tuple(names), "two or more, each with a name of its own")
    return ChoiceReply(len(names))


def prompt_of(prompt: str, named: Sequence[NamedAction], spec: Spec) -> str:
    """Prompt with the list of actions, or the meaning of the numbers."""
    if named:
        return f"{prompt.rstrip()}\nActions: {', '.join(f'{at} = {one.name}' for at, one in enumerate(named))}."
    meaning = [f"{name} ({unit})" if unit else name for name, unit in zip(spec.names, spec.units, strict=True)]
    return f"{prompt.rstrip()}\nThe numbers are {', '.join(meaning)}."
