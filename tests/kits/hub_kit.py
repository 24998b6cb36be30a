"""A model hub on this machine: serves directories under names, at one commit each, as the public one does."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "1f" * 20
GATED = "closed/model"


@contextmanager
def hub(models: Mapping[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """Serve models by name; gives the server's address, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(body=True)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def answer(self, body: bool) -> None:
            asked.append(unquote(self.path.partition("?")[0]))
            parts = asked[-1].strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                self.about("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main", body, "tree" in parts[4:5])
            elif len(parts) > 4 and parts[2] == "resolve":
                self.file("/".join(parts[:2]), "/".join(parts[4:]), body)
            else:
                self.say(404, b"{}", body)

        def about(self, name: str, revision: str, body: bool, tree: bool) -> None:
            if name == GATED:
                return self.say(403, b"{}", body, {"X-Error-Code": "GatedRepo"})
            if name not in models:
                return self.say(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
            if revision not in ("main", COMMIT):
                return self.say(404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
            root = models[name]
            files = {p.relative_to(root).as_posix(): p.stat().st_size for p in root.rglob("*") if p.is_file()}
            found: object = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": path} for path in files]}
            if tree:
                found = [{"type": "file", "path": path, "size": size, "oid": COMMIT} for path, size in files.items()]
            return self.say(200, json.dumps(found).encode(), body, {"Content-Type": "application/json"})

        def file(self, name: str, path: str, body: bool) -> None:
            if name not in models:
                return self.say(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
            if not (models[name] / path).is_file():
                return self.say(404, b"{}", body, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            data = (models[name] / path).read_bytes()
            tag = hashlib.sha256(data).hexdigest()
            self.say(200, data, body, {"X-Repo-Commit": COMMIT, "ETag": f'"{tag}"'})

        def say(self, status: int, data: bytes, body: bool, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
