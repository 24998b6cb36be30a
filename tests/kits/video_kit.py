"""Small datasets with pictures, and videos made frame by frame with PyAV itself, well and badly."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from robotrl.datasets.lerobot import DatasetWriter
from robotrl.spec import Spec

FPS = 20
HEIGHT, WIDTH = 16, 24
KEY = "observation.image_top"
VIDEO = f"videos/{KEY}/chunk-000/file-000.mp4"
FRAMES = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
PICTURE = Spec((HEIGHT, WIDTH, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8")
SPECS = {"state": Spec((2,), ("x_w", "y_w"), ("m", "m"), (-9.0, -9.0), (9.0, 9.0)), "image_top": PICTURE}
ACTION = Spec((2,), ("dx", "dy"), ("1", "1"), (-1.0, -1.0), (1.0, 1.0))


def scene(episode: int, length: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """(T, height, width, 3): a sky whose colour is the episode's, and a bright disc that moves a pixel a frame."""
    rows, columns = np.mgrid[:height, :width]
    out = np.empty((length, height, width, 3), np.uint8)
    for t in range(length):
        ground = np.stack([30 + 20 * (episode % 8) + rows, 90 + columns, 160 - rows], -1)
        disc = ((rows - height / 2) ** 2 + (columns - 4 - t % (width - 8)) ** 2 < 16)[..., None]
        out[t] = np.where(disc, (230, 200, 40), ground)
    return out


def write_pictures(root: Path, lengths: Sequence[int] = (5, 1, 9), *, fps: int = FPS, **options) -> np.ndarray:
    """Write episodes of these lengths with `DatasetWriter`; give all pictures (F, height, width, 3)."""
    seen = [scene(e, length) for e, length in enumerate(lengths)]
    rng = np.random.default_rng(0)
    with DatasetWriter(root, fps=fps, observation_spec=SPECS, action_spec=ACTION, **options) as writer:
        for pictures in seen:
            count = len(pictures)
            obs = {"state": rng.normal(size=(count, 2)), "image_top": pictures}
            writer.add_episode(obs, rng.uniform(-1, 1, (count, 2)), np.zeros(count), success=True, task="look")
        writer.finish()
    return np.concatenate(seen)


def as_foreign(root: Path) -> Path:
    """The dataset as another writer would leave it: without our file, so nothing is hashed."""
    (root / "meta/robotrl.json").unlink(missing_ok=True)
    return root


def edit_json(root: Path, name: str, change) -> None:
    """Change a JSON file of the dataset in place."""
    content = json.loads((root / name).read_text())
    change(content)
    (root / name).write_text(json.dumps(content))


def edit_column(root: Path, name: str, column: str, values) -> None:
    """Put other values in a column of a table; None removes it."""
    table = pq.read_table(root / name)
    at = table.column_names.index(column)
    table = table.remove_column(at) if values is None else table.set_column(at, column, pa.array(values))
    pq.write_table(table, root / name)


def write_mp4(
    path: Path,
    frames: np.ndarray,
    *,
    fps: float = FPS,
    ticks: Sequence[int] | None = None,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    options: dict[str, str] | None = None,
) -> None:
    """An mp4 by PyAV alone; frame k at k / fps seconds, or at ticks[k] hundredths of a second."""
    import av

    with av.open(str(path), "w", format="mp4") as file:
        stream = file.add_stream(codec, rate=Fraction(fps).limit_denominator(1000), options=options or {})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], pix_fmt
        if ticks is not None:
            stream.codec_context.time_base = Fraction(1, 100)
        for at, picture in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            if ticks is not None:
                frame.pts, frame.time_base = ticks[at], Fraction(1, 100)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def png(picture: np.ndarray, kind: str = "PNG", mode: str = "RGB") -> bytes:
    """A picture as the bytes of a file."""
    buffer = io.BytesIO()
    Image.fromarray(picture).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def store_as_png(root: Path, pictures: np.ndarray, cells: Sequence[object] | None = None) -> Path:
    """Turn a dataset whose pictures are numbers into one that holds PNG files, as LeRobot writes them."""
    as_foreign(root)
    values = [{"bytes": png(picture), "path": None} for picture in pictures] if cells is None else list(cells)
    begin = 0
    for path in sorted((root / "data").rglob("*.parquet")):
        end = begin + pq.read_metadata(path).num_rows
        edit_column(root, path.relative_to(root).as_posix(), KEY, values[begin:end])
        begin = end

    def declare(info) -> None:
        info["features"][KEY] = {"dtype": "image", "shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "channel"]}

    edit_json(root, "meta/info.json", declare)
    edit_json(root, "meta/stats.json", lambda stats: stats.pop(KEY))
    return root
