"""Safe XML parsing for OpenDRIVE and route files, with errors that name file, road, field, value and expectation."""

from __future__ import annotations

import math
import warnings
from xml.etree.ElementTree import Element
from xml.parsers import expat

from robotrl.errors import DataError

LIMIT = 1e9
"""Largest magnitude of numbers accepted; larger ones would overflow later, far from their cause."""
DEEPEST = 100
"""Maximum nesting depth of elements; the format needs about a dozen."""
PROLOG_BYTES = 256


def tree(content: bytes | str, name: str, wanted: str = "an OpenDRIVE file") -> Element:
    """Parse the root element; text between elements and namespace prefixes are dropped.

    A document type declaration is refused, since it can declare entities (which may expand without bound) or name files
    to be read. Text before the root element is fed in small pieces: the parser finishes the piece in which the refusal
    occurred, and such a short text cannot declare entities that grow large.

    Args:
        content: the file's content.
        name: of the file, for errors.
        wanted: kind of file that errors say was expected.

    Raises:
        DataError: invalid XML, or a document type declaration.
    """
    parser = expat.ParserCreate("utf-8" if isinstance(content, str) else None)
    stack = [Element("")]

    def refuse(*_: object) -> None:
        raise DataError(f"{name}: has a document type declaration (<!DOCTYPE): expected {wanted} without one")

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) > DEEPEST:
            raise DataError(f"{name}: its elements are nested deeper than {DEEPEST} levels: expected {wanted}")
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
        raise DataError(f"{name}: is no XML ({error}): expected {wanted}") from None
    return stack[0][0]


class Notes:
    """Counts parts of an imperfect file that were dropped, and reports them in one warning."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def add(self, what: str, example: str) -> None:
        """Count one dropped part; the first example of each kind is reported."""
        count, first = self._found.get(what, (0, example))
        self._found[what] = count + 1, first

    def warn(self, name: str) -> None:
        """Emit the warning if anything was dropped."""
        if self._found:
            summary = "; ".join(f"{count} {what} (first: {first})" for what, (count, first) in self._found.items())
            warnings.warn(f"{name}: {summary}", stacklevel=4)


def shown(value: str | None) -> str:
    """Format a value for error messages."""
    return "missing" if value is None else repr(value if len(value) <= 40 else value[:37] + "...")


def number(
    element: Element, key: str, where: str, default: float | None = None, low: float = -LIMIT, high: float = LIMIT
) -> float:
    """Parse an attribute as a finite number from `low` to `high`; `default`, if given, replaces a missing one.

    Raises:
        DataError: missing without a default, not a number, or out of range.
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
    """Parse an attribute as an integer.

    Raises:
        DataError: missing, or not an integer.
    """
    raw = element.get(key)
    try:
        return int(raw or "")
    except ValueError:
        raise DataError(f"{where}: <{element.tag}> {key} is {shown(raw)}: expected a whole number") from None


def word(element: Element, key: str, where: str) -> str:
    """Return a required attribute.

    Raises:
        DataError: missing.
    """
    raw = element.get(key)
    if raw is None:
        raise DataError(f"{where}: <{element.tag}> {key} is missing: expected it")
    return raw
