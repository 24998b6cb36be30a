"""`robotrl report`."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from robotrl.cli.commands.parsing import parse
from robotrl.errors import ConfigError, short

if TYPE_CHECKING:
    from robotrl.deploy.analysis.ticks import ControlTicks

HTML_BEGINS = re.compile(rb"\s*<!doctype html", re.IGNORECASE)
JSON_BEGINS = re.compile(rb'\{\s*"schema_version": 1,\s*"log": ')
_TICK = re.compile(r"([0-9]{1,9}):([0-9]{1,9})", re.ASCII)
MCAP_BEGINS = re.compile(rb"\x89MCAP0\r\n")


@dataclass(frozen=True)
class Args:
    """Evidence from a control log of `robotrl deploy --log`: times, interventions, seams between chunks, tracking.

    The summary goes to the terminal; the options write more, or compute ticks again with the bundle.
    """

    log: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="LOG")]
    """Control log, written by `robotrl deploy --log`."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.html")] = None
    """Write a page with histograms, a timeline and action traces; it is self-contained."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the numbers to this file."""
    mcap: Annotated[Path | None, tyro.conf.arg(metavar="FILE.mcap")] = None
    """Write the ticks as MCAP, which robotics viewers open (extra mcap)."""
    bundle: Annotated[Path | None, tyro.conf.arg(metavar="BUNDLE")] = None
    """The bundle that was run: compute every tick again and compare."""
    tick: Annotated[str | None, tyro.conf.arg(metavar="EPISODE:TICK")] = None
    """Show one tick instead of the summary; with --bundle it is computed again."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl report", argv)
    at = None if args.tick is None else _tick(args.tick)
    _check_outputs(args)
    from robotrl.deploy.analysis.ticks import read_ticks

    ticks = read_ticks(args.log)
    if at is not None:
        print(*_tick_lines(args, ticks, *at), sep="\n")
        return 0
    from robotrl.deploy.analysis.lines import replay_line, summary_lines
    from robotrl.deploy.analysis.summary import meaning_of_header, meaning_of_manifest, summarize
    from robotrl.deploy.bundle.bundle import open_bundle
    from robotrl.deploy.control.replay import replay

    again = None if args.bundle is None else replay(args.log, args.bundle)
    meaning = meaning_of_header(ticks)
    if meaning is None and args.bundle is not None:
        meaning = meaning_of_manifest(open_bundle(args.bundle).manifest)
    summary = summarize(ticks, meaning)
    print(*summary_lines(ticks, summary), sep="\n")
    if again is not None:
        print("", f"replay: {replay_line(again)}", sep="\n")
    if args.out is not None:
        from robotrl.report.control.page import ControlLogPage, render_control_log

        command = shlex.join(["robotrl", "report", *argv])
        replayed = "" if again is None else replay_line(again)
        page = ControlLogPage(args.log.name, ticks, summary, meaning, replayed, command)
        _write(args.out, render_control_log(page).encode())
    if args.json is not None:
        from robotrl.deploy.bundle.strict import to_json
        from robotrl.utils.files import dump_json

        replayed_fields = None if again is None else again._asdict()
        plain = {"schema_version": 1, "log": str(args.log), **to_json(summary), "replay": replayed_fields}
        _write(args.json, dump_json(plain))
    if args.mcap is not None:
        from robotrl.deploy.analysis.mcap_export import mcap_bytes

        _write(args.mcap, mcap_bytes(ticks))
    return 0


def _check_outputs(args: Args) -> None:
    """Check the files to be written before anything is read."""
    from robotrl.deploy.control.outputs import check_output

    outputs = {"--out": args.out, "--json": args.json, "--mcap": args.mcap}
    given = {option: path for option, path in outputs.items() if path is not None}
    if args.tick is not None and given:
        raise ConfigError(f"--tick shows one tick: expected it without {next(iter(given))}")
    kinds = {
        "--out": ("page", HTML_BEGINS, (".html", ".htm")),
        "--json": ("report of a log", JSON_BEGINS, ()),
        "--mcap": ("MCAP file", MCAP_BEGINS, (".mcap",)),
    }
    seen: dict[Path, str] = {}
    for option, path in given.items():
        what, begins, endings = kinds[option]
        if endings and path.suffix.lower() not in endings:
            raise ConfigError(f"{option} is {str(path)!r}: expected a name that ends in {' or '.join(endings)}")
        if path.resolve() in seen:
            raise ConfigError(f"{option} is {str(path)!r}, as {seen[path.resolve()]}: expected two files")
        seen[path.resolve()] = option
        # without a bundle nothing must lie outside of one: a file has no files in it
        check_output(path, what, begins, outside=args.log if args.bundle is None else args.bundle)
    if args.mcap is not None:
        # a missing extra is named before anything is read
        importlib.import_module("robotrl.deploy.analysis.mcap_export")


def _write(path: Path, content: bytes) -> None:
    from robotrl.utils.files import replace_file

    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    print(f"wrote {path}")


def _tick(text: str) -> tuple[int, int]:
    """Episode and tick of `--tick`.

    Raises:
        ConfigError: it is not two numbers.
    """
    match = _TICK.fullmatch(text)
    if match is None:
        raise ConfigError(f"--tick is {short(repr(text))}: expected EPISODE:TICK, two whole numbers, e.g. 1:17")
    return int(match[1]), int(match[2])


def _tick_lines(args: Args, ticks: ControlTicks, episode: int, tick: int) -> list[str]:
    """One tick, as logged or computed again.

    Raises:
        ConfigError: the log has no such tick.
    """
    from robotrl.deploy.analysis.lines import logged_tick_lines, replayed_tick_lines
    from robotrl.deploy.analysis.summary import nearest_tick
    from robotrl.deploy.control.replay import replayed_ticks

    found = ((ticks.episode == episode) & (ticks.tick == tick)).nonzero()[0]
    if not len(found):
        near = nearest_tick(ticks, episode, tick)
        raise ConfigError(f"--tick is '{episode}:{tick}': the log has no such tick; the nearest is {near[0]}:{near[1]}")
    index = int(found[0])
    if args.bundle is None:
        return logged_tick_lines(ticks, index)
    # a motion to a start pose has ticks of its own
    again = next(
        t
        for t in replayed_ticks(args.log, args.bundle, episode)
        if (t.record["kind"], t.record["tick"]) == ("tick", tick)
    )
    return replayed_tick_lines(ticks, index, again)
