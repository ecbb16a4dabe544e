"""Pictures of every format decode as in transformers' own loader; broken ones are refused."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image
from sample_media import picture, png_header

from sglang_omni.preprocessing.image import decode_image, shrunk
from sglang_omni.proto import RequestError


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def gradient(mode: str) -> Image.Image:
    return Image.open(io.BytesIO(picture(3))).convert(mode)


def rotated() -> bytes:
    image = gradient("RGB")
    exif = image.getexif()
    exif[0x0112] = 6
    return encoded(image, "JPEG", exif=exif)


def animated(kind: str) -> bytes:
    frames = [Image.open(io.BytesIO(picture(seed))) for seed in (1, 2, 3)]
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:])


PICTURES = {
    "png": picture(1),
    "jpeg": picture(1, kind="JPEG"),
    "webp": picture(1, kind="WEBP"),
    "bmp": picture(1, kind="BMP"),
    "tiff": picture(1, kind="TIFF"),
    "grey": picture(1, mode="L"),
    "one bit": picture(1, mode="1"),
    "palette": picture(1, mode="P"),
    "palette with transparency": encoded(gradient("P"), transparency=3),
    "transparent": encoded(Image.merge("RGBA", (*gradient("RGB").split(), gradient("L")))),
    "grey with alpha": encoded(gradient("LA")),
    "16 bit": encoded(Image.fromarray(np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 9)),
    "cmyk": encoded(gradient("CMYK"), "JPEG"),
    "rotated": rotated(),
    "animated gif": animated("GIF"),
    "animated webp": animated("WEBP"),
    "one pixel": picture(1, 1, 1),
}


@pytest.mark.parametrize("name", PICTURES)
def test_every_kind_is_what_transformers_loads(name: str) -> None:
    from transformers.image_utils import load_image

    found = decode_image(PICTURES[name], param="image")
    expected = load_image(base64.b64encode(PICTURES[name]).decode())
    assert found.mode == "RGB"
    assert found.size == expected.size
    assert np.array_equal(np.asarray(found), np.asarray(expected))


def test_a_rotated_picture_is_upright() -> None:
    assert decode_image(PICTURES["rotated"], param="image").size == gradient("RGB").size[::-1]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (png_header(10_000, 10_000), "image has 10000 x 10000 pixels, 100.0 megapixels; the limit is 50"),
        (png_header(2**30, 2**30), "the limit"),
        (picture(1, 201, 1), "one side may be at most 200 times"),
        (picture(1)[:300], "image is a corrupted picture"),
        (picture(1, kind="JPEG")[:200], "image is a corrupted picture"),
        (b"GIF89a\x00\x00\x00\x00", "image is"),
        (b"no picture at all", "image is not a picture that can be decoded; send PNG, JPEG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image is not a picture"),
    ],
)
def test_what_is_no_picture_is_refused(data: bytes, expected: str) -> None:
    with pytest.raises(RequestError, match=expected) as caught:
        decode_image(data, param="image")
    assert caught.value.param == "image"
    assert 400 <= caught.value.status < 500


def test_pixels_that_are_damaged_are_refused_or_decoded_but_never_fail_otherwise() -> None:
    generator = np.random.default_rng(0)
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"):
        whole = bytearray(picture(2, 48, 48, kind=kind))
        for _ in range(40):
            damaged = bytearray(whole)
            for place in generator.integers(0, len(whole), 4):
                damaged[place] = generator.integers(256)
            try:
                assert decode_image(bytes(damaged), param="image").mode == "RGB"
            except RequestError:
                continue


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((512, 512), (512, 512)),
        ((1024, 1024), (512, 512)),
        ((2048, 512), (1024, 256)),
        ((3000, 15), (3000, 15)),
    ],
)
def test_a_picture_is_shrunk_in_its_proportions(size: tuple[int, int], expected: tuple[int, int]) -> None:
    small = shrunk(Image.new("RGB", size), 512 * 512)
    assert small.size == expected
    assert small.width * small.height <= 512 * 512
