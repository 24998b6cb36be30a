"""Contact wrenches in batches: an engine plugin that calls MuJoCo's `mj_rnePostConstraint` after every physics step.

`cfrc_ext`, the external wrench on each body, is not part of `mj_step`: Gymnasium calls `mj_rnePostConstraint` after it.
A batch makes many physics steps in one call and keeps no contacts afterwards, so the call must happen inside the step.
A sensor that needs the wrench does not work: RK4 skips sensors in its stages, and the wrench would be that of the first
stage, not of the last. MuJoCo calls an engine plugin's `advance` once at the end of each step, with the arguments of
`mj_rnePostConstraint` plus an instance number that this function ignores. The function itself is therefore registered
as the callback and runs as native code on the physics threads. It writes `cacc`, `cfrc_int` and `cfrc_ext`, which later
steps do not read.
"""

from __future__ import annotations

import ctypes
import warnings
from functools import cache
from pathlib import Path

import mujoco

from robotrl.errors import RobotrlError
from robotrl.sims.mujoco.engine.warnings import remarks

FIELDS = ("cacc", "cfrc_int", "cfrc_ext")
"""MjData fields that `mj_rnePostConstraint` writes."""
_NAME = "robotrl.rne_post"


class _Plugin(ctypes.Structure):
    """`mjpPlugin` of MuJoCo's mjplugin.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("nattribute", ctypes.c_int),
        ("attributes", ctypes.c_void_p),
        ("capabilityflags", ctypes.c_int),
        ("needstage", ctypes.c_int),
        *(
            (callback, ctypes.c_void_p)
            for callback in (
                *("nstate", "nsensordata", "init", "destroy", "copy", "reset", "compute", "advance", "visualize"),
                *("actuator_act_dot", "sdf_distance", "sdf_gradient", "sdf_staticdistance", "sdf_attribute"),
                "sdf_aabb",
            )
        ),
    ]


def with_wrenches(xml: str, model: mujoco.MjModel) -> mujoco.MjModel:
    """Compile `xml` with the plugin: each physics step ends with `mj_rnePostConstraint`; states stay identical.

    Args:
        xml: the MJCF.
        model: the plain compiled model, whose options are copied.

    Raises:
        RobotrlError: this MuJoCo version has another plugin interface.
    """
    name = _register()
    # the plain model has already emitted these warnings
    with remarks(), warnings.catch_warnings(action="ignore"):
        spec = mujoco.MjSpec.from_string(xml)
        spec.activate_plugin(name)
        spec.add_plugin(plugin_name=name, name=name)
        out = spec.compile()
    out.opt.disableflags = model.opt.disableflags
    return out


@cache
def _register() -> str:
    """Register the plugin once in this process; returns its name."""
    found = sorted(Path(mujoco.__file__).parent.glob("libmujoco.*"))
    if not found:
        raise RobotrlError(f"mujoco {mujoco.__version__}: expected its library libmujoco.* beside the package")
    library = ctypes.CDLL(str(found[0]))
    _check_size(library)
    plugin = _Plugin()
    library.mjp_defaultPlugin(ctypes.byref(plugin))
    plugin.name = _NAME.encode()
    plugin.capabilityflags = int(mujoco.mjtPluginCapabilityBit.mjPLUGIN_SENSOR)
    # required callbacks that must do nothing: mj_stateSize of no components is 0 and only reads the model
    plugin.nstate = plugin.nsensordata = _address(library, "mj_stateSize")
    plugin.init = plugin.reset = plugin.compute = _address(library, "mj_isSparse")
    plugin.advance = _address(library, "mj_rnePostConstraint")
    library.mjp_registerPlugin(ctypes.byref(plugin))
    return _NAME


def _check_size(library: ctypes.CDLL) -> None:
    """Refuse a MuJoCo whose `mjpPlugin` has another size, which `mjp_defaultPlugin` would overwrite with zeros."""
    size = ctypes.sizeof(_Plugin)
    memory = (ctypes.c_ubyte * (4 * size))(*[0xFF] * (4 * size))
    library.mjp_defaultPlugin(memory)
    if bytes(memory) != bytes(size) + b"\xff" * (3 * size):
        raise RobotrlError(
            f"mujoco {mujoco.__version__}: its engine plugins have another layout than those of 3.17 to 4.0: contact"
            " wrenches are not available; install mujoco 4.0"
        )


def _address(library: ctypes.CDLL, function: str) -> int | None:
    return ctypes.cast(getattr(library, function), ctypes.c_void_p).value
