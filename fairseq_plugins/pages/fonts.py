"""Fonts for drawings: which installed ones have the glyphs of a text, and what to install when none has."""

import logging
import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from matplotlib import font_manager

logger = logging.getLogger(__name__)

BASE = "DejaVu Sans"
"""Comes with matplotlib; has Latin, Greek, Cyrillic, Arabic, Hebrew and the ▁ of sentencepiece."""

# Searched first, and in this order: plain fonts that cover a lot.
_PREFERRED = ("NotoSansCJK-Regular", "NotoSans-Regular", "NotoSans", "DroidSansFallback", "wqy", "Noto")
_CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH", "BOPOMOFO")


def families(texts: Iterable[str]) -> list[str]:
    """Return font families that together have all glyphs of the texts; warn about those that no font has."""
    lacking = {c for text in texts for c in text if c.isprintable() and not c.isspace()}
    chosen = [BASE]
    lacking -= _glyphs(font_manager.findfont(BASE))
    for path in _installed() if lacking else ():
        found = lacking & _glyphs(path)
        if found:
            font_manager.fontManager.addfont(path)
            chosen.append(font_manager.get_font(path).family_name)
            lacking -= found
        if not lacking:
            break
    if lacking:
        logger.warning("%s", advice(lacking))
    return chosen


def advice(lacking: Iterable[str]) -> str:
    """Return one line that names characters without a glyph and the package that has them."""
    characters = sorted(lacking)
    scripts = {unicodedata.name(c, "UNKNOWN").split()[0].split("-")[0] for c in characters}
    packages = sorted({"fonts-noto-cjk" if script in _CJK else "fonts-noto-core" for script in scripts})
    shown = " ".join(characters[:10]) + (" ..." if len(characters) > 10 else "")
    return (
        f"no installed font has these characters: {shown}; PNG and SVG show boxes in their place. Install the Debian "
        f"package {' and '.join(packages)} and run the command again. The HTML page uses the browser's fonts"
    )


@cache
def _installed() -> tuple[str, ...]:
    def rank(path: str) -> tuple[int, int, str]:
        stem = Path(path).stem
        kind = next((i for i, start in enumerate(_PREFERRED) if stem.startswith(start)), len(_PREFERRED))
        return kind, "Regular" not in stem, path

    return tuple(sorted(font_manager.findSystemFonts(), key=rank))


@cache
def _glyphs(path: str) -> frozenset[str]:
    try:
        return frozenset(map(chr, font_manager.get_font(path).get_charmap()))
    except (RuntimeError, OSError):  # a bitmap or damaged font
        return frozenset()
