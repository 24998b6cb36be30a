#!/bin/sh
# Prints a Python 3.11 or newer, or says in one line why there is none. PYTHON=/path/to/python goes first.
for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
    # A name that resolves is not enough: version managers put shims on PATH for versions that are not active.
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        command -v "$candidate"
        exit 0
    fi
done
echo "error: no Python 3.11 or newer with its venv module was found (tried python3.11, python3.12, python3.13, python3):" \
    "install it (on Debian and Ubuntu: apt install python3.11 python3.11-venv) or name it: make PYTHON=/path/to/python" >&2
exit 2
