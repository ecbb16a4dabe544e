"""Decoding of pictures in any common format to RGB."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

from sglang_omni.proto import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

# Formats with widely used decoders; PIL knows some fifty more.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
# Limit of the Qwen2-VL image processor, which refuses more elongated pictures.
MAX_ASPECT_RATIO = 200


def decode_image(data: bytes, *, param: str, max_pixels: int = 50_000_000) -> Image:
    """Decodes a picture as transformers' ``load_image`` does: turned upright by its EXIF data, then RGB.

    An animation gives its first frame. Palettes are resolved, transparency is dropped, 16-bit greys are
    clipped at 255.

    Args:
        data: The encoded file; its format is found from its content.
        param: The request's field, for error messages.
        max_pixels: Largest width times height, checked before decoding.

    Raises:
        RequestError: The data are not a picture, or the picture is too large or too elongated.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # Our own limit applies, and warnings would reach the server's log instead of the caller.
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            _check_size(*image.size, param=param, max_pixels=max_pixels)
            upright = ImageOps.exif_transpose(image)
            return upright.convert("RGB")
    except RequestError:
        raise
    except UnidentifiedImageError as exc:
        raise RequestError(
            f"{param} is not a picture that can be decoded; send {', '.join(FORMATS)}",
            param=param,
            code="invalid_image",
        ) from exc
    except Image.DecompressionBombError as exc:
        raise RequestError(
            f"{param} has far more than {max_pixels / 1e6:g} megapixels, the limit",
            param=param,
            code="image_too_large",
        ) from exc
    except Exception as exc:
        raise RequestError(
            f"{param} is a corrupted picture: {exc}", param=param, code="invalid_image"
        ) from exc


def shrunk(image: Image, max_pixels: int) -> Image:
    """The picture scaled down to at most ``max_pixels``, its proportions kept but for rounding."""
    from PIL import Image

    width, height = image.size
    if width * height <= max_pixels:
        return image
    scale = (max_pixels / (width * height)) ** 0.5
    size = (max(1, int(width * scale)), max(1, int(height * scale)))
    return image.resize(size, Image.Resampling.BICUBIC)


def _check_size(width: int, height: int, *, param: str, max_pixels: int) -> None:
    if not width or not height:
        raise RequestError(f"{param} is a picture without pixels", param=param, code="invalid_image")
    if width * height > max_pixels:
        raise RequestError(
            f"{param} has {width} x {height} pixels, {width * height / 1e6:.1f} megapixels; "
            f"the limit is {max_pixels / 1e6:g} megapixels",
            param=param,
            code="image_too_large",
        )
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise RequestError(
            f"{param} has {width} x {height} pixels; one side may be at most {MAX_ASPECT_RATIO} times "
            "the other",
            param=param,
            code="invalid_image",
        )
