"""Recorded drives as text lines, as an HTML page and as a video."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from robotrl.report.drive_pack import pack_drive
from robotrl.report.drive_page import DrivePage, EpisodeRow, Share, render_drives
from robotrl.report.drive_trace import DriveTrace
from robotrl.report.drive_video import frame_count, grid_count, grid_frames, palette, video_frames
from robotrl.report.replay import Layout
from robotrl.report.text import percent
from robotrl.rollout.evaluate import EvalResult
from robotrl.utils.media import write_video


class DriveSummary(NamedTuple):
    """Evaluated and recorded drives of one driver."""

    driver: str
    """Name of the driver for display."""
    sim: str
    dt_s: float
    actions: tuple[str, ...]
    """Names of the elements of an action."""
    split: str
    result: EvalResult
    scenarios: tuple[str, ...]
    """Scenario of each start; empty if the sim has no scenarios."""
    traces: list[DriveTrace]

    def page(self, whole: bool = False) -> str:
        """HTML page that shows the drives.

        Args:
            whole: full evaluation report: confidence interval, success by scenario and a table of all episodes.
        """
        result, scores = self.result, [trace.steps[-1].score for trace in self.traces]
        total, won = len(result.ids), int(result.success.sum())
        if whole:
            rate = result.rate
            verdict = f"{percent(rate.value)} success (95 % interval {100 * rate.low:.1f} to {100 * rate.high:.1f} %)"
            lede = f"{total:,} starts of split {self.split}, each driven once; mean return {result.returns.mean():.3f}."
            if 0 < len(self.traces) < total:
                lede += f" {len(self.traces)} of the drives are shown, failures first."
            elif not self.traces:
                lede += " None of the episodes is shown."
        else:
            verdict = f"{won} of {total} {'drive' if total == 1 else 'drives'} succeeded."
            lede = f"Mean driving score {sum(scores) / len(scores):.1f}."
        return render_drives(
            DrivePage(
                title=f"{self.driver} on {self.sim}",
                verdict=verdict,
                lede=lede,
                drives=[pack_drive(trace, self.dt_s, self.actions) for trace in self.traces],
                shares=self._shares() if whole else (),
                episodes=self._rows() if whole else (),
            )
        )

    def lines(self) -> list[str]:
        """One text line for each recorded drive."""
        out: list[str] = []
        for trace in self.traces:
            last = trace.steps[-1]
            out.append(
                f"{trace.state_id} {trace.map.scenario}: {trace.outcome}; {100 * last.completion:.0f} % of the route in"
                f" {len(trace.steps) * self.dt_s:.1f} s, driving score {last.score:.1f}"
            )
        return out

    def write_video(self, path: Path, layout: Layout | None = None) -> int:
        """Write all drives to one video; returns the number of frames.

        Args:
            path: file that ends in .gif or .mp4.
            layout: "grid" shows all side by side; "sequence", the default, one after another.
        """
        if layout == "grid":
            frames, count = grid_frames(self.traces, self.dt_s), grid_count(self.traces, self.dt_s)
        else:
            frames, count = video_frames(self.traces, self.dt_s), frame_count(self.traces, self.dt_s)
        return write_video(frames, count, palette(), path)

    def _shares(self) -> list[Share]:
        won: dict[str, list[bool]] = {}
        for name, success in zip(self.scenarios, self.result.success.tolist(), strict=False):
            won.setdefault(name, []).append(success)
        return [Share(name, sum(each), len(each)) for name, each in sorted(won.items())]

    def _rows(self) -> list[EpisodeRow]:
        result = self.result
        names = self.scenarios or ("",) * len(result.ids)
        columns: Any = (result.ids, names, result.success, result.length * self.dt_s, result.returns)
        return [EpisodeRow(int(i), n, bool(s), float(t), float(r)) for i, n, s, t, r in zip(*columns, strict=True)]
