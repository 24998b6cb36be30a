"""Reports: self-contained HTML files that work without a server or a network."""

from __future__ import annotations

from robotrl.report.data import (
    Animation,
    Camera,
    CurvePoint,
    Geom,
    Level,
    RecordedEpisode,
    ReportData,
    geoms_from_mujoco,
    poses_from_mujoco,
)
from robotrl.report.page import write_report

__all__ = [
    "Animation",
    "Camera",
    "CurvePoint",
    "Geom",
    "Level",
    "ReportData",
    "RecordedEpisode",
    "geoms_from_mujoco",
    "poses_from_mujoco",
    "write_report",
]
