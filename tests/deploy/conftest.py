"""Each runtime in turn: one suite holds both to the same behavior."""

from __future__ import annotations

import shutil

import pytest

from robotrl.deploy.buffers import Runtime


@pytest.fixture(params=["python", "native"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    if request.param == "native" and shutil.which("g++") is None:
        pytest.skip("needs g++")
    return request.param
