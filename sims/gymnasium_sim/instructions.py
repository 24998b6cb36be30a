"""Instructions of language-conditioned environments: their source, and their encoding into observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from robotrl.errors import ConfigError, nearest, out_of_range, unknown
from robotrl.sims.gymnasium_sim.faults import EnvironmentFault, Foreign
from robotrl.sims.gymnasium_sim.spaces import STATE, Path, key_of
from robotrl.sims.gymnasium_sim.words import Numbers, Vocabulary, Words, vocabulary_of
from robotrl.spec import INSTRUCTION

Source = Literal["text", "attribute", "info", "none"]
READ: tuple[Source, ...] = ("attribute", "info")
"""Sources that are read after each reset."""


class InstructionSource(NamedTuple):
    """Instruction source and vocabulary of a sim."""

    vocab: Vocabulary
    source: Source
    """Source of the instruction; "none" if only observations contain texts."""
    name: str
    """Name of the attribute or `info` key; for source "text" the instruction itself."""

    @property
    def asked(self) -> str:
        """Value of the option `instruction`."""
        return self.name if self.source == "text" else f"{self.source}:{self.name}"


def instruction_source(instruction: Any, vocabulary: Any, longest: Any) -> InstructionSource | None:
    """Parse the options `instruction`, `vocabulary` and `longest`; None if none of them is set.

    Raises:
        ConfigError: a value of another type or out of range, or a source without a vocabulary.
    """
    if instruction is None and vocabulary is None:
        if longest is not None:
            raise out_of_range("longest", longest, "None without the options instruction and vocabulary")
        return None
    if instruction is None:
        return InstructionSource(vocabulary_of(None, vocabulary, longest), "none", "")
    source, name = _source(instruction)
    if source == "text":
        vocab = vocabulary_of(name, vocabulary, longest)
        vocab.encode(name)
        return InstructionSource(vocab, source, name)
    if vocabulary is None:
        raise ConfigError(
            f"instruction is {instruction!r} and vocabulary is None: expected the words that may occur, as a text or as"
            " @FILE"
        )
    return InstructionSource(vocabulary_of(None, vocabulary, longest), source, name)


def _source(instruction: Any) -> tuple[Source, str]:
    if not isinstance(instruction, str):
        raise out_of_range(INSTRUCTION, instruction, "a text, attribute:NAME or info:KEY")
    kind, colon, name = instruction.partition(":")
    if not colon or " " in kind:
        return "text", instruction
    if not name:
        raise out_of_range(INSTRUCTION, instruction, "a text, attribute:NAME or info:KEY")
    for source in READ:
        if kind == source:
            return source, name
    raise unknown("source of the instruction", kind, READ)


class InstructionEncoder:
    """Encodes the texts and the instruction of one environment into its observations.

    Args:
        env: the environment.
        instructions: instruction source and vocabulary; None without text.
        space: its observation space.

    Raises:
        ConfigError: the observation has a text and there is no vocabulary, or it has a part named "instruction" while
            the option `instruction` is set.
    """

    def __init__(self, env: gym.Env[Any, Any], instructions: InstructionSource | None, space: gym.Space[Any]) -> None:
        self._env, self._instructions = env, instructions
        self._texts = texts(space)
        self._parted = isinstance(space, spaces.Dict)
        self._numbers: Numbers | None = None
        self.space = encoded_space(space, instructions)
        """Observation space with word numbers in place of texts, and with the instruction."""

    def started(self, observation: Any, info: Any) -> Any:
        """Encode the first observation of an episode, after reading its instruction.

        Raises:
            ConfigError: the source does not exist, gave no text, or gave a text with words outside the vocabulary.
        """
        if self._instructions is not None and self._instructions.source != "none":
            self._numbers = self._instructions.vocab.encode(self._read(self._instructions, info))
        return self.shown(observation)

    def shown(self, observation: Any) -> Any:
        """Encode an observation of the running episode.

        Raises:
            ConfigError: a text with words outside the vocabulary.
            LookupError: the observation lacks a part of its space.
            TypeError: the observation is not nested where its space is.
        """
        if self._instructions is None:
            return observation
        for path in self._texts:
            observation = replaced(observation, path, lambda value, path=path: self._encoded(value, path))
        if self._numbers is None:
            return observation
        return {**(observation if self._parted else {STATE: observation}), INSTRUCTION: self._numbers}

    def _encoded(self, value: Any, path: Path) -> Numbers:
        assert self._instructions is not None
        field = f"observation {_name(path)!r}"
        return self._instructions.vocab.encode(text_of(value, field), field)

    def _read(self, instructions: InstructionSource, info: Any) -> str:
        if instructions.source == "text":
            return instructions.name
        found = _in_info(instructions, info) if instructions.source == "info" else _attribute(instructions, self._env)
        return text_of(found, f"instruction is {instructions.asked!r}, which")


def _in_info(instructions: InstructionSource, info: Any) -> Any:
    known = info if isinstance(info, Mapping) else {}
    if instructions.name not in known:
        raise _missing(instructions, "the info of reset() has no such key", [str(key) for key in known])
    return known[instructions.name]


def _attribute(instructions: InstructionSource, env: gym.Env[Any, Any]) -> Any:
    """Attribute of the unwrapped environment, else of a wrapper; a method is called."""
    inner, name = env.unwrapped, instructions.name
    with Foreign(name, EnvironmentFault):
        if hasattr(inner, name):
            found = getattr(inner, name)
        elif env.has_wrapper_attr(name):
            found = env.get_wrapper_attr(name)
        else:
            raise _missing(instructions, f"{type(inner).__name__} has no such attribute", _attributes(inner))
        return found() if callable(found) else found


def _attributes(holder: object) -> list[str]:
    return [name for name in dir(holder) if not name.startswith("_")]


def _missing(instructions: InstructionSource, what: str, choices: list[str]) -> ConfigError:
    close = nearest(instructions.name, choices)
    hint = f": did you mean '{instructions.source}:{close}'?" if close else ""
    return ConfigError(f"instruction is {instructions.asked!r}: expected one that exists; {what}{hint}")


def text_of(value: Any, field: str) -> str:
    """Return a text, or the only text of a list, tuple or array.

    Raises:
        ConfigError: any other value.
    """
    one = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(one, list | tuple) and len(one) == 1:
        one = one[0]
    if not isinstance(one, str):
        raise ConfigError(f"{field} is {repr(value)[:80]}: expected a text, or a list of one")
    return one


def _name(path: Path) -> str:
    return key_of(path, STATE if path else INSTRUCTION)


def texts(space: gym.Space[Any], path: Path = ()) -> tuple[Path, ...]:
    """Paths of the text parts of an observation space."""
    if isinstance(space, spaces.Text):
        return (path,)
    if isinstance(space, spaces.Dict):
        return tuple(found for name, part in space.spaces.items() for found in texts(part, (*path, name)))
    if isinstance(space, spaces.Tuple):
        return tuple(found for i, part in enumerate(space.spaces) for found in texts(part, (*path, i)))
    return ()


def encoded_space(space: gym.Space[Any], instructions: InstructionSource | None) -> gym.Space[Any]:
    """Observation space with `Words` in place of texts, and with the instruction.

    Raises:
        ConfigError: see `InstructionEncoder`.
    """
    found = texts(space)
    if instructions is None:
        if found:
            raise ConfigError(
                f"observation {_name(found[0])!r} is a text and vocabulary is None: expected the words that may occur,"
                " as a text or as @FILE"
            )
        return space
    if instructions.source == "none":
        if not found:
            raise ConfigError(
                "vocabulary is given and the observation has no text: expected the option instruction, a text,"
                " attribute:NAME or info:KEY"
            )
        return _in_words(space, instructions.vocab)
    worded = _in_words(space, instructions.vocab)
    parts = dict(worded.spaces) if isinstance(worded, spaces.Dict) else {STATE: worded}
    if INSTRUCTION in parts:
        raise ConfigError(
            f"instruction is {instructions.asked!r}: expected None, the observation has a part of that name"
        )
    return spaces.Dict({**parts, INSTRUCTION: Words(instructions.vocab)})


def _in_words(space: gym.Space[Any], vocab: Vocabulary) -> gym.Space[Any]:
    if isinstance(space, spaces.Text):
        return Words(vocab)
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _in_words(part, vocab) for name, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(tuple(_in_words(part, vocab) for part in space.spaces))
    return space


def replaced(observation: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """Copy of a nested observation with the part at `path` changed; all other parts are shared."""
    if not path:
        return change(observation)
    part = replaced(observation[path[0]], path[1:], change)
    if isinstance(observation, Mapping):
        return {**observation, path[0]: part}
    return tuple(part if i == path[0] else other for i, other in enumerate(observation))
