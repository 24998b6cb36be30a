"""Run pyright in strict mode over robotrl, in the installed layout.

An editable install hides the package-dir map behind an import hook that type checkers do not see. The packages are
therefore copied to `build/typecheck` in the layout of a wheel and checked there; messages name the source files.

Usage: typecheck.py [text that a file's path must contain ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib

from layout import ROOT, stage

TARGET = ROOT / "build" / "typecheck"


def main(only: list[str]) -> int:
    """Check the types and print each finding at its source; returns the exit code."""
    origin = stage(TARGET)
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
    config |= {"include": ["robotrl", "benchmarks"], "stubPath": str(ROOT / config["stubPath"])}
    (TARGET / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    quiet = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, cwd=TARGET, env=quiet, capture_output=True, text=True, check=False)
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:
        print(done.stdout + done.stderr, file=sys.stderr)
        return 1
    found = 0
    for item in report["generalDiagnostics"]:
        source = next((s for staged, s in origin.items() if str(TARGET / staged) == item["file"]), item["file"])
        if item["severity"] != "error" or (only and not any(text in str(source) for text in only)):
            continue
        found += 1
        start = item["range"]["start"]
        rule = f" ({item['rule']})" if "rule" in item else ""
        print(f"{source}:{start['line'] + 1}:{start['character'] + 1}: {item['message']}{rule}")
    checked = report["summary"]["filesAnalyzed"]
    print(f"types: {checked} files, " + (f"{found} errors" if found else "no errors"))
    return 1 if found or checked == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
