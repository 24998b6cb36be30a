"""`robotrl status`."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from robotrl.cli.commands.parsing import parse
from robotrl.errors import ConfigError, DataError, check_count, check_number, short

if TYPE_CHECKING:
    from robotrl.run.sessions.status import RunStatus

SCHEMA_VERSION = 1
CLEAR = "\x1b[H\x1b[2J"
"""Clears a terminal."""


@dataclass(frozen=True)
class Args:
    """State of training runs, from their files alone: of one run, or of all runs in folders, such as a sweep's.

    No process is asked, so it works on a shared folder, too. Without one, `--serve` on the machine of the runs answers
    `--url` on another.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    """Directories of runs, and folders that hold some."""
    watch: bool = False
    """Show it again and again until no run is in training."""
    every_s: float = 2.0
    """Time between two looks of --watch, s, 0.1 to 3600."""
    json: bool = False
    """Print JSON; with --watch one line a look."""
    url: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """Ask a server in place of files: http://HOST:PORT of `robotrl status RUN --serve`."""
    serve: bool = False
    """Answer --url of other machines, until Ctrl-C or SIGTERM."""
    host: str = "127.0.0.1"
    """With --serve: address to bind; any other than this machine's own needs a token."""
    port: int = 8440
    """With --serve: TCP port; 0 lets the system choose."""
    token_env: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """With --serve or --url: environment variable that holds the token which clients must present."""
    token_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """With --serve or --url: file that holds the token."""
    tls_cert: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """With --serve: certificate (PEM, with its chain); clients then ask https://."""
    tls_key: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """With --serve: its private key (PEM, without a password)."""
    tls_ca: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """With --url: certificate to trust instead of the system's authorities."""


class RunsLook(NamedTuple):
    """State of runs at a moment."""

    runs: tuple[RunStatus, ...]
    not_begun: int
    """Number of runs of sweeps that have not begun."""
    sweeping: bool
    """True if a sweep is running, which may begin runs."""

    @property
    def going(self) -> bool:
        """True if something may still change."""
        return self.sweeping or any(run.state == "running" for run in self.runs)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl status", argv)
    _check(args)
    check_number("--every-s", args.every_s, 0.1, 3600)
    if args.serve:
        return _serve(args)
    while True:
        look = _look(args.paths) if args.url is None else _asked(args.url, args)
        if args.json:
            print(json.dumps(_json(look), indent=None if args.watch else 1), flush=True)
        else:
            clear = CLEAR if args.watch and sys.stdout.isatty() else ""
            print(clear + "\n".join(_lines(look)), flush=True)
        if not args.watch or not look.going:
            return 0
        time.sleep(args.every_s)


OF_SERVE = ("host", "port", "tls_cert", "tls_key")
OF_URL = ("tls_ca",)
OF_BOTH = ("token_env", "token_file")


def _check(args: Args) -> None:
    """Check which options are given together.

    Raises:
        ConfigError: two do not go together, or nothing says which runs.
    """
    if args.url is None and not args.paths:
        raise ConfigError("missing: RUN, the directories of one or more runs, or folders of runs")
    if args.url is not None and args.paths:
        raise ConfigError(f"RUN is {args.paths[0]} beside --url: expected one of them")
    if args.serve:
        for name in ("url", "watch", "json"):
            if getattr(args, name):
                raise ConfigError(f"--{name} is given beside --serve: expected one of them")
    given = [one.name for one in fields(Args) if getattr(args, one.name) != one.default]
    for names, there, what in (
        (OF_SERVE, args.serve, "--serve"),
        (OF_URL, args.url is not None, "--url"),
        (OF_BOTH, args.serve or args.url is not None, "--serve or --url"),
    ):
        if not there and (extra := [name for name in names if name in given]):
            raise ConfigError(f"--{extra[0].replace('_', '-')} is given: expected {what} beside it")


def _serve(args: Args) -> int:
    """Answer requests until a signal."""
    from robotrl.cli.status_http import StatusServer
    from robotrl.deploy.remote.access import bind_addresses, is_loopback, read_token, server_tls
    from robotrl.run.locking import StopSignals

    check_count("--port", args.port, 0, 65535)
    token = read_token(args.token_env, args.token_file)
    addresses = bind_addresses(args.host, token)
    tls = server_tls(args.tls_cert, args.tls_key)
    _look(args.paths)  # what is no run is refused now
    server = StatusServer((addresses[0], args.port), lambda: _json(_look(args.paths)), token, tls)
    host = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    print(f"http{'' if tls is None else 's'}://{host}:{server.server_port}", flush=True)
    if tls is None and not is_loopback(addresses[0]):
        print("warning: without TLS, who is on the network can read token and state", file=sys.stderr, flush=True)
    signals = StopSignals()
    signals.install()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        while signals.received is None:
            time.sleep(0.1)
    finally:
        signals.restore()
        server.shutdown()
        server.server_close()
    return 128 + signals.received


def _asked(url: str, args: Args) -> RunsLook:
    """State of the runs of a server."""
    from robotrl.cli.status_http import checked_url, fetched
    from robotrl.deploy.remote.access import read_token

    return _from_json(fetched(checked_url(url), read_token(args.token_env, args.token_file), args.tls_ca), url)


def _from_json(found: Any, url: str) -> RunsLook:
    """Inverse of `_json`; text has no control characters, because it is shown in a terminal.

    Raises:
        DataError: it is not the state of runs.
    """
    from robotrl.run.sessions.status import RunStatus

    number, text = (int, float), (str,)
    kinds: dict[str, tuple[type, ...]] = dict.fromkeys(("path", "state", "why", "host", "score"), text)
    kinds |= {"iteration": (int,), "env_steps": number, "evaluation": (dict, type(None))}
    kinds |= dict.fromkeys(("iterations", "checkpoint"), (int, type(None)))
    kinds |= dict.fromkeys(("env_steps_per_s", "best", "since_line_s", "left_s"), (*number, type(None)))
    try:
        if found["schema_version"] != SCHEMA_VERSION:
            raise DataError(
                f"--url is {url}, whose state of runs has schema version {short(str(found['schema_version']))}:"
                f" expected {SCHEMA_VERSION}"
            )
        runs: list[RunStatus] = []
        for run in found["runs"]:
            values = {name: run[name] for name in RunStatus._fields}
            for name, value in values.items():
                if not isinstance(value, kinds[name]) or isinstance(value, bool):
                    raise TypeError
                if isinstance(value, str):
                    values[name] = "".join(letter if letter.isprintable() else "?" for letter in value)
            if values["evaluation"] is not None:
                values["evaluation"] = {str(name): float(value) for name, value in values["evaluation"].items()}
                if not {"success", "iteration"} <= values["evaluation"].keys():
                    raise TypeError
            runs.append(RunStatus(**values))
        return RunsLook(tuple(runs), int(found["not_begun"]), bool(found["sweeping"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(
            f"--url is {url}, whose answer is not the state of runs: expected robotrl status --serve"
        ) from None


def _look(paths: Sequence[Path]) -> RunsLook:
    """State of all runs at or below paths.

    Raises:
        DataError: a path does not exist or holds no run, or a run is damaged.
    """
    from robotrl.run.locking import is_being_written
    from robotrl.run.sessions.status import runs_below, status_of
    from robotrl.sweeps.plan import load_plan

    found: dict[Path, RunStatus] = {}
    not_begun, sweeping = 0, False
    for path in paths:
        if not path.is_dir():
            raise DataError(f"{path} {'is no folder' if path.exists() else 'does not exist'}: expected one of a run")
        runs, plan = runs_below(path), load_plan(path)
        if not runs and plan is None:
            raise DataError(f"{path} holds no run: expected the directory of a run, or a folder of runs")
        found |= {run: status_of(run) for run in runs if run not in found}
        if plan is not None:
            not_begun += sum(run not in found for run in plan.paths(path))
            sweeping = sweeping or is_being_written(path)
    return RunsLook(tuple(found.values()), not_begun, sweeping)


def _json(look: RunsLook) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "runs": [run._asdict() for run in look.runs],
        "not_begun": look.not_begun,
        "sweeping": look.sweeping,
    }


def _lines(look: RunsLook) -> list[str]:
    """Text of a look: a few lines of a single run, a table of several."""
    from robotrl.api.comparing import aligned

    if len(look.runs) == 1 and not look.not_begun:
        return _single(look.runs[0])
    heads = ("run", "state", "iteration", "env steps", "per s", "last evaluation", "best", "last line", "left")
    table = [heads] + [
        (
            run.path,
            run.state,
            _iteration(run),
            f"{run.env_steps:,.0f}",
            _rate(run),
            _evaluation(run),
            _score(run, run.best),
            _ago(run),
            _left(run),
        )
        for run in look.runs
    ]
    states = [run.state for run in look.runs]
    parts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    parts += [f"{look.not_begun} not begun"] if look.not_begun else []
    return [*aligned(table), "", f"{len(states) + look.not_begun} runs: {', '.join(parts)}"]


def _single(run: RunStatus) -> list[str]:
    where = f" on {run.host}" if run.host else ""
    why = f" ({run.why})" if run.why else ""
    left = f", {_left(run)} left" if run.left_s is not None else ""
    rows = [
        ("env steps", f"{run.env_steps:,.0f}" + (f", {_rate(run)} a second" if run.env_steps_per_s else "")),
        ("last evaluation", _evaluation(run)),
        ("best", _score(run, run.best)),
        ("last line", f"{_ago(run)} ago" if run.since_line_s is not None else "none"),
        ("newest checkpoint", "none" if run.checkpoint is None else f"iteration {run.checkpoint:,}"),
    ]
    return [f"{run.path}: {run.state}{where}{why}, iteration {_iteration(run)}{left}"] + [
        f"  {name:<19}{value}" for name, value in rows
    ]


def _iteration(run: RunStatus) -> str:
    return f"{run.iteration:,}" + ("" if run.iterations is None else f" of {run.iterations:,}")


def _rate(run: RunStatus) -> str:
    return "" if run.env_steps_per_s is None else f"{run.env_steps_per_s:,.0f}"


def _evaluation(run: RunStatus) -> str:
    """ "81.2 % [73.5 % to 87.1 %] at 30", with the return before it if the run goes by that."""
    from robotrl.report.text import number, percent

    found = run.evaluation
    if found is None:
        return "none"
    at = f"at {found['iteration']:,.0f}"
    before = f"{number(found['return'])}, success " if run.score == "return" and "return" in found else ""
    ends = f" [{percent(found['low'])} to {percent(found['high'])}]" if {"low", "high"} <= found.keys() else ""
    return f"{before}{percent(found['success'])}{ends} {at}"


def _score(run: RunStatus, value: float | None) -> str:
    from robotrl.report.text import number, percent

    if value is None:
        return "none"
    return number(value) if run.score == "return" else percent(value)


def _ago(run: RunStatus) -> str:
    from robotrl.report.text import seconds

    return "" if run.since_line_s is None else seconds(run.since_line_s)


def _left(run: RunStatus) -> str:
    from robotrl.utils.progress import clock_text

    return "" if run.left_s is None else clock_text(run.left_s)
