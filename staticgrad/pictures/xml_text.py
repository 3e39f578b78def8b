"""Text for XML: escaping, shortening, and sizes in bytes."""

from __future__ import annotations

import re

# Everything that XML 1.0 cannot hold, surrogates of broken file names included.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def clean(text: str) -> str:
    """Return `text` with every character that XML cannot hold replaced.

    >>> clean("a" + chr(0) + "b") == "a" + chr(0xFFFD) + "b"
    True
    """
    return _FORBIDDEN.sub("\ufffd", text)


def escape(text: str) -> str:
    """Return `text` for the inside of an XML element or attribute.

    >>> escape('<"a" & b>')
    '&lt;&quot;a&quot; &amp; b&gt;'
    """
    text = clean(text).replace("&", "&amp;").replace("<", "&lt;")
    return text.replace(">", "&gt;").replace('"', "&quot;")


def shorten(text: str, length: int) -> str:
    """Return `text`, its middle left out where it is longer than `length`.

    >>> shorten("block.12.attention.weight", 15)
    'block.1….weight'
    """
    if len(text) <= length:
        return text
    head = length // 2
    tail = length - head - 1
    return text[:head] + "…" + text[len(text) - tail :]


def byte_text(count: float) -> str:
    """Return `count` bytes with a binary unit.

    >>> byte_text(1536)
    '1.5 KiB'
    >>> byte_text(64)
    '64 B'
    """
    for scale, unit in _UNITS:
        if count >= scale:
            value = count / scale
            return f"{value:.4g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
    return f"{count:.0f} B"
