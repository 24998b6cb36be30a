"""Live pictures: read by a real client over HTTP."""

import io
import urllib.request

import numpy as np
import pytest
from PIL import Image

from robotrl.errors import ConfigError
from robotrl.utils.picture_stream import PictureStream


def test_a_browser_gets_each_new_picture():
    stream = PictureStream(0)
    with urllib.request.urlopen(stream.address, timeout=20) as page:
        assert b"<img src='stream'" in page.read()
    stream.show(np.full((8, 16, 3), 200, np.uint8))
    with urllib.request.urlopen(f"{stream.address}stream", timeout=20) as pictures:
        for level in (200, 40):
            assert pictures.readline() == b"--frame\r\n"
            assert pictures.readline() == b"Content-Type: image/jpeg\r\n"
            length = int(pictures.readline().split()[1])
            pictures.readline()
            picture = np.asarray(Image.open(io.BytesIO(pictures.read(length))))
            assert picture.shape == (8, 16, 3)
            assert abs(int(picture.mean()) - level) <= 2
            pictures.readline()
            stream.show(np.full((8, 16, 3), 40, np.uint8))
        stream.close()


def test_a_port_that_is_taken():
    first = PictureStream(0)
    with pytest.raises(ConfigError, match=f"--port is {first.server_port}: it is taken"):
        PictureStream(first.server_port)
    first.close()
