"""Reads the XML of an OpenDRIVE file: safely, and with an error that names file, road, field, value and expectation."""

from __future__ import annotations

import math
import warnings
from xml.etree.ElementTree import Element
from xml.parsers import expat

from robotrl.errors import DataError

LIMIT = 1e9
"""No number of a road network is larger; one that is would overflow later, far from its cause."""
DEEPEST = 100
"""Levels of elements within one another; the format has a dozen."""
PROLOG_BYTES = 256


def tree(content: bytes | str, name: str) -> Element:
    """The root element; texts between the elements are dropped, prefixes of namespaces too.

    A document type declaration is refused, since only there can a file declare entities (which may expand without
    bound) or name files to be read. What stands before the root element is handed over in small pieces: the parser
    finishes the piece in which the refusal arose, and so little text cannot declare entities that grow large.

    Raises:
        DataError: no XML, or with a document type declaration.
    """
    parser = expat.ParserCreate("utf-8" if isinstance(content, str) else None)
    stack = [Element("")]

    def refuse(*_: object) -> None:
        raise DataError(f"{name}: has a document type declaration (<!DOCTYPE): expected an OpenDRIVE file without one")

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) > DEEPEST:
            raise DataError(f"{name}: its elements are nested deeper than {DEEPEST} levels: expected an OpenDRIVE file")
        element = Element(tag.rpartition(":")[2], attributes)
        stack[-1].append(element)
        stack.append(element)

    def end(_: str) -> None:
        stack.pop()

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    try:
        raw = content.encode() if isinstance(content, str) else content
        done = 0
        while done < len(raw) and not len(stack[0]):
            parser.Parse(raw[done : done + PROLOG_BYTES], False)
            done += PROLOG_BYTES
        parser.Parse(raw[done:], True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise DataError(f"{name}: is no XML ({error}): expected an OpenDRIVE file") from None
    return stack[0][0]


class Notes:
    """What a slightly broken file had that was left out: counted, and told in one warning."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def add(self, what: str, example: str) -> None:
        """One more of a kind; the first example is told."""
        count, first = self._found.get(what, (0, example))
        self._found[what] = count + 1, first

    def warn(self, name: str) -> None:
        """The warning, if there is anything to tell."""
        if self._found:
            told = "; ".join(f"{count} {what} (first: {first})" for what, (count, first) in self._found.items())
            warnings.warn(f"{name}: {told}", stacklevel=4)


def shown(value: str | None) -> str:
    """A value as errors show it."""
    return "missing" if value is None else repr(value if len(value) <= 40 else value[:37] + "...")


def number(
    element: Element, key: str, where: str, default: float | None = None, low: float = -LIMIT, high: float = LIMIT
) -> float:
    """An attribute as a finite number from `low` to `high`; `default`, where given, stands for a missing one.

    Raises:
        DataError: missing without a default, no number, or outside.
    """
    raw = element.get(key)
    if raw is None and default is not None:
        return default
    try:
        value = float(raw or "")
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise DataError(f"{where}: <{element.tag}> {key} is {shown(raw)}: expected a number from {low:g} to {high:g}")
    return value


def whole(element: Element, key: str, where: str) -> int:
    """An attribute as a whole number.

    Raises:
        DataError: missing or none.
    """
    raw = element.get(key)
    try:
        return int(raw or "")
    except ValueError:
        raise DataError(f"{where}: <{element.tag}> {key} is {shown(raw)}: expected a whole number") from None


def word(element: Element, key: str, where: str) -> str:
    """An attribute that must be there.

    Raises:
        DataError: missing.
    """
    raw = element.get(key)
    if raw is None:
        raise DataError(f"{where}: <{element.tag}> {key} is missing: expected it")
    return raw
