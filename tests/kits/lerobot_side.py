"""Run by another Python, one that has the lerobot package: `lerobot_side.py COMMAND ROOT OUT.npz`.

`read` opens a dataset with LeRobotDataset and saves what it sees, `read-pictures` what it sees of pictures, as bytes
and channels last; `write` makes one and saves what it put in, `write-pictures` one with a camera stored as a video and
one stored as PNG files. Arrays and JSON text only.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch

FPS = 20
HORIZON = 4


def mend_torchvision():
    """A CUDA build of torchvision beside a CPU torch lacks its compiled operators; their names are enough here."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None


def read(root, out):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset("local/robotrl", root=root)
    items = [dataset[row] for row in range(len(dataset))]
    columns = [name for name in items[0] if name != "task"]
    arrays = {f"frame/{name}": np.stack([item[name].numpy() for item in items]) for name in columns}
    seconds = [step / dataset.fps for step in range(HORIZON)]
    chunked = LeRobotDataset("local/robotrl", root=root, delta_timestamps={"action": seconds})
    rows = [chunked[row] for row in range(len(chunked))]
    arrays["chunks"] = np.stack([row["action"].numpy() for row in rows])
    arrays["padding"] = np.stack([row["action_is_pad"].numpy() for row in rows])
    last = LeRobotDataset("local/robotrl", root=root, episodes=[dataset.num_episodes - 1])
    arrays["last_episode"] = np.stack([last[row]["action"].numpy() for row in range(len(last))])
    for name, stats in dataset.meta.stats.items():
        arrays |= {f"stats/{name}/{key}": np.asarray(value, np.float64) for key, value in stats.items()}
    episodes = dataset.meta.episodes
    arrays |= {f"episodes/{name}": np.asarray(episodes[name]) for name in episodes.column_names if name != "tasks"}
    about = {
        "tasks": [item["task"] for item in items],
        "episode_tasks": [list(tasks) for tasks in episodes["tasks"]],
        "names": dataset.meta.names["observation.state"],
        "robot_type": dataset.meta.robot_type,
        "fps": dataset.fps,
        "num_episodes": dataset.num_episodes,
    }
    np.savez(out, about=np.array(json.dumps(about)), **arrays)


def write(root, out):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
        "observation.force": {"dtype": "float32", "shape": (1,), "names": ["f"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    }
    dataset = LeRobotDataset.create("local/foreign", FPS, features, robot_type="so101", root=root, use_videos=False)
    rng = np.random.default_rng(0)
    lengths = [5, 1, 12, 7]
    kept = {name: [] for name in features}
    for episode, length in enumerate(lengths):
        for t in range(length):
            frame = {
                "observation.state": rng.normal(1000.0, 1.0, 3).astype(np.float32),
                "observation.force": rng.normal(size=1).astype(np.float32),
                "action": rng.uniform(-1, 1, 2).astype(np.float32),
                "next.reward": rng.normal(size=1).astype(np.float32),
                "next.done": np.array([t == length - 1]),
            }
            for name, value in frame.items():
                kept[name].append(value)
            dataset.add_frame({**frame, "task": f"task {episode % 2}"})
        dataset.save_episode()
    dataset.finalize()
    np.savez(out, lengths=np.array(lengths), **{name: np.stack(values) for name, values in kept.items()})


def read_pictures(root, out):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.datasets.utils import dataset_to_policy_features

    dataset = LeRobotDataset("local/robotrl", root=root, video_backend="pyav")
    arrays = {}
    for name in dataset.meta.camera_keys:
        seen = np.stack([dataset[row][name].numpy() for row in range(len(dataset))])
        arrays[f"frame/{name}"] = np.round(255 * seen.transpose(0, 2, 3, 1)).astype(np.uint8)
        arrays |= {f"stats/{name}/{key}": np.asarray(value) for key, value in dataset.meta.stats[name].items()}
        # the way of a policy that sees two frames at once
        times = {name: [-1 / dataset.fps, 0.0]}
        pairs = LeRobotDataset("local/robotrl", root=root, delta_timestamps=times, video_backend="pyav")
        arrays[f"pair/{name}"] = np.round(255 * pairs[len(pairs) - 1][name].numpy().transpose(0, 2, 3, 1))
    shapes = {name: list(f.shape) for name, f in dataset_to_policy_features(dataset.features).items()}
    about = {"videos": dataset.meta.video_keys, "cameras": dataset.meta.camera_keys, "shapes": shapes}
    np.savez(out, about=np.array(json.dumps(about)), **arrays)


def write_pictures(root, out):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    shape, names = (48, 64, 3), ["height", "width", "channels"]
    features = {
        "observation.images.top": {"dtype": "video", "shape": shape, "names": names},
        "observation.images.wrist": {"dtype": "image", "shape": shape, "names": names},
        "action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
    }
    dataset = LeRobotDataset.create("local/foreign", FPS, features, robot_type="so101", root=root, use_videos=True)
    rng = np.random.default_rng(0)
    lengths = [5, 1, 12]
    kept = {name: [] for name in features}
    rows, columns = np.mgrid[:48, :64]
    for episode, length in enumerate(lengths):
        for t in range(length):
            ground = np.stack([40 * episode + rows, 60 + 2 * columns, 200 - 2 * rows], -1)
            disc = ((rows - 24) ** 2 + (columns - 10 - 3 * t) ** 2 < 64)[..., None]
            top = np.where(disc, (230, 60, 40), ground).astype(np.uint8)
            frame = {
                "observation.images.top": top,
                "observation.images.wrist": rng.integers(0, 256, shape, dtype=np.uint8),
                "action": rng.uniform(-1, 1, 2).astype(np.float32),
            }
            for name, value in frame.items():
                kept[name].append(value)
            dataset.add_frame({**frame, "task": "look"})
        dataset.save_episode()
    dataset.finalize()
    np.savez(out, lengths=np.array(lengths), **{name: np.stack(values) for name, values in kept.items()})


COMMANDS = {"read": read, "write": write, "read-pictures": read_pictures, "write-pictures": write_pictures}

if __name__ == "__main__":
    library = mend_torchvision()
    COMMANDS[sys.argv[1]](sys.argv[2], sys.argv[3])
