"""The page about endpoints: its example prints what it shows."""

import re
import subprocess
import sys

from tests.kits.chat_server import ChatServer
from tests.kits.paths_kit import ROOT

PAGE = ROOT / "docs" / "rewards" / "endpoint.md"


def test_the_example_of_the_page_prints_what_it_shows(tmp_path):
    (script,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^Run against.*?```\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "ask.py").write_text(script)

    def brightness(call):
        return {"choice": int(call.picture.mean() > 128)}

    with ChatServer(brightness) as server:
        command = [sys.executable, "ask.py", server.base_url, "brightness"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", shown)
