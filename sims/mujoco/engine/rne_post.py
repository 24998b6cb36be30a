"""Contact wrenches at the end of every physics step of a batch: MuJoCo's `mj_rnePostConstraint`, called by its engine.

`cfrc_ext`, the external wrench on each body, is not part of `mj_step`: Gymnasium calls `mj_rnePostConstraint` after it.
A batch makes many physics steps in one call and then has its outputs left but no contacts, so the call must happen
inside. A sensor that needs the wrench does not do it: RK4 skips sensors in its stages, and the wrench would be that of
the first stage, not of the last. An engine plugin's `advance` is called once at the end of each step, with the
arguments of `mj_rnePostConstraint` and an instance number that the latter never looks at; so the function itself is the
callback, native code on the physics threads. It writes `cacc`, `cfrc_int` and `cfrc_ext` and nothing that later steps
read.
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
"""What `mj_rnePostConstraint` writes."""
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
    """The model of `xml`, whose every physics step ends with `mj_rnePostConstraint`; states are the same bit for bit.

    Args:
        xml: the MJCF.
        model: it compiled, whose options are taken over.

    Raises:
        RobotrlError: this MuJoCo's plugin interface is not the one that is known here.
    """
    name = _register()
    # the plain model has said it already
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
    # required callbacks that must do nothing: the size of no state component is 0, the other only reads the model
    plugin.nstate = plugin.nsensordata = _address(library, "mj_stateSize")
    plugin.init = plugin.reset = plugin.compute = _address(library, "mj_isSparse")
    plugin.advance = _address(library, "mj_rnePostConstraint")
    library.mjp_registerPlugin(ctypes.byref(plugin))
    return _NAME


def _check_size(library: ctypes.CDLL) -> None:
    """Refuse a MuJoCo whose `mjpPlugin` has another size: its default writes zeros over just that many bytes."""
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
