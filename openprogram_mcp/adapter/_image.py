"""Images from tools: what they really are, and whether a model API takes them.

Owns: the check that keeps a false label or a broken image out of a conversation, where it would make every later
request fail. It reads headers only: nothing is decoded beyond base64.
"""

from __future__ import annotations

import binascii
from typing import Final

from attrs import frozen

__all__ = ["MAX_IMAGE_BYTES", "Image", "Refused", "decoded_size", "read_image"]

MAX_IMAGE_BYTES: Final = 5 * 1024 * 1024 * 3 // 4
"""The largest image that is passed on, decoded: 5 MiB as base64, as the strictest of the model APIs counts."""

MAX_IMAGE_PIXELS: Final = 8000
"""The longest side that the strictest of the model APIs takes."""

_URL_SAFE = str.maketrans("-_", "+/")
_OTHER_TYPES: Final = (
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"%PDF-", "application/pdf"),
)


@frozen
class Image:
    """An image that a model API takes: clean base64 and the true type."""

    data: str
    mime_type: str


@frozen
class Refused:
    """An image that is not passed on.

    ``why`` is a clause; ``size`` is in bytes, ``None`` where it cannot be told; ``text`` is the source of an SVG.
    """

    why: str
    mime_type: str
    size: int | None = None
    text: str | None = None


def read_image(data: object, mime_type: object) -> Image | Refused:
    """Look at an image block's data and label.

    Args:
        data: What stands in ``data``: base64, perhaps with line breaks, in the URL-safe alphabet, without padding, or
            after a ``data:`` prefix, all of which is put right.
        mime_type: What the server says it is, which is not believed.
    """
    label = mime_type.strip().lower() if isinstance(mime_type, str) and mime_type.strip() else "unknown type"
    if not isinstance(data, str) or not data:
        return Refused("it has no data", label)
    encoded = data
    if encoded[:5].lower() == "data:":
        encoded = encoded.partition(",")[2]
    if len(encoded) > MAX_IMAGE_BYTES * 3 // 2:
        return _too_large(label, decoded_size(encoded))
    raw = _decode(encoded)
    if raw is None:
        return Refused("its data is not base64", label)
    if not raw:
        return Refused("it has no data", label)
    encoded, raw_bytes = raw
    true_type = _sniff(raw_bytes)
    if true_type is None:
        return _not_for_models(raw_bytes, label)
    if len(raw_bytes) > MAX_IMAGE_BYTES:
        return _too_large(true_type, len(raw_bytes))
    fault = _fault(raw_bytes, true_type)
    if fault is not None:
        return Refused(fault, true_type, len(raw_bytes))
    return Image(encoded, true_type)


def decoded_size(encoded: object) -> int | None:
    """How many bytes a base64 text stands for, without decoding it; ``None`` for what is no text."""
    if not isinstance(encoded, str):
        return None
    return len(encoded.rstrip("=\r\n ")) * 3 // 4


def _decode(encoded: str) -> tuple[str, bytes] | tuple[()] | None:
    """The base64 in its plain form, with what it stands for; ``()`` for nothing, ``None`` for what is not base64."""
    try:
        raw = binascii.a2b_base64(encoded, strict_mode=True)
    except (ValueError, binascii.Error):
        encoded = "".join(encoded.split()).translate(_URL_SAFE).rstrip("=")
        encoded += "=" * (-len(encoded) % 4)
        try:
            raw = binascii.a2b_base64(encoded, strict_mode=True)
        except (ValueError, binascii.Error):
            return None
    return (encoded, raw) if raw else ()


def _sniff(raw: bytes) -> str | None:
    if raw.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if raw.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if raw.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if raw.startswith(b"RIFF") and raw[8:12] == b"WEBP":
        return "image/webp"
    return None


def _not_for_models(raw: bytes, label: str) -> Refused:
    start = raw[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"<svg") or (start.startswith((b"<?xml", b"<!")) and b"<svg" in start):
        return Refused("an SVG drawing, shown as its source", "image/svg+xml", len(raw), raw.decode("utf-8", "replace"))
    for magic, name in _OTHER_TYPES:
        if raw.startswith(magic):
            return Refused("models take only PNG, JPEG, GIF and WebP", name, len(raw))
    return Refused("it is not a PNG, JPEG, GIF or WebP image", label, len(raw))


def _too_large(mime_type: str, size: int | None) -> Refused:
    return Refused(f"it is over the limit of {MAX_IMAGE_BYTES:,} bytes", mime_type, size)


def _fault(raw: bytes, mime_type: str) -> str | None:
    """What a header that is there says against the image. A header that is not there says nothing."""
    width = height = None
    if mime_type == "image/png" and raw[12:16] == b"IHDR":
        width, height = int.from_bytes(raw[16:20], "big"), int.from_bytes(raw[20:24], "big")
        if _png_is_cut(raw):
            return "it is cut off"
    elif mime_type == "image/gif" and len(raw) >= 10:
        width, height = int.from_bytes(raw[6:8], "little"), int.from_bytes(raw[8:10], "little")
    if width is None or height is None:
        return None
    if max(width, height) > MAX_IMAGE_PIXELS:
        return f"it is {width} x {height} pixels, over the limit of {MAX_IMAGE_PIXELS} a side"
    return None


def _png_is_cut(raw: bytes) -> bool:
    position = 8
    while position + 12 <= len(raw):
        if raw[position + 4 : position + 8] == b"IEND":
            return False
        position += 12 + int.from_bytes(raw[position : position + 4], "big")
    return True
