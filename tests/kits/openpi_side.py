"""Runs under a Python that has openpi-client: talks to a server by it, or writes down the messages that it would send.

python openpi_side.py infer URL OUT.json [KEY]     # OUT: what the client got
python openpi_side.py record OUT.json              # OUT: messages in base64, by name
"""

import base64
import json
import sys
from pathlib import Path

import numpy as np
from openpi_client import action_chunk_broker, msgpack_numpy, websocket_client_policy

RAMP = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
STATE = np.array([0.1, 0.2, 0.3, 0.0])
OBSERVATIONS = {
    "flat": {"observation/state": STATE, "observation/image": RAMP, "prompt": "go"},
    "nested": {
        "state": STATE.astype(np.float32),
        "images": {"image": np.ascontiguousarray(np.moveaxis(RAMP, -1, 0))},
        "prompt": "Go, stop!",
    },
    "scalars": {"observation/state": STATE, "observation/touch": np.float64(1.0)},
    "plain number": {"observation/state": STATE, "observation/touch": 1.0},
    "unknown key": {"observation/state": STATE, "observation/image": RAMP, "prompt": "go", "observation/wrist": RAMP},
    "unknown word": {"observation/state": STATE, "observation/image": RAMP, "prompt": "jump"},
    "not finite": {"observation/state": STATE * np.nan, "observation/image": RAMP, "prompt": "go"},
}


def infer(url, out, key=None):
    policy = websocket_client_policy.WebsocketClientPolicy(url, api_key=key)
    got = {"metadata": policy.get_server_metadata(), "answers": {}, "errors": {}}
    for name, obs in OBSERVATIONS.items():
        try:
            answer = policy.infer(obs)
            assert answer["actions"].dtype == np.float32
            got["answers"][name] = answer["actions"].tolist()
        except RuntimeError as error:
            got["errors"][name] = str(error)
    broker = action_chunk_broker.ActionChunkBroker(policy, action_horizon=2)
    if "flat" in got["answers"]:
        got["steps"] = [broker.infer(OBSERVATIONS["flat"])["actions"].tolist() for _ in range(3)]
    Path(out).write_text(json.dumps(got))


def record(out):
    packed = {name: msgpack_numpy.packb(obs) for name, obs in OBSERVATIONS.items()}
    Path(out).write_text(json.dumps({name: base64.b64encode(data).decode() for name, data in packed.items()}, indent=1))


{"infer": infer, "record": record}[sys.argv[1]](*sys.argv[2:])
