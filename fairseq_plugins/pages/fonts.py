"""Fonts for drawings: find installed fonts with the glyphs of a text, and advise what to install."""

import logging
import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from matplotlib import font_manager

logger = logging.getLogger(__name__)

BASE = "DejaVu Sans"
"""Part of matplotlib; has Latin, Greek, Cyrillic, Arabic, Hebrew and the ▁ of sentencepiece."""

# Searched first, in this order: fonts that cover many scripts.
_PREFERRED = ("NotoSansCJK-Regular", "NotoSans-Regular", "NotoSans", "DroidSansFallback", "wqy", "Noto")
_CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH", "BOPOMOFO")


def families(texts: Iterable[str]) -> list[str]:
    """Return font families that together have all glyphs of the texts; warn about missing glyphs."""
    missing = {c for text in texts for c in text if c.isprintable() and not c.isspace()}
    chosen = [BASE]
    missing -= _glyphs(font_manager.findfont(BASE))
    for path in _installed() if missing else ():
        found = missing & _glyphs(path)
        if found:
            font_manager.fontManager.addfont(path)
            chosen.append(font_manager.get_font(path).family_name)
            missing -= found
        if not missing:
            break
    if missing:
        logger.warning("%s", advice(missing))
    return chosen


def advice(missing: Iterable[str]) -> str:
    """Return one line that names characters without a glyph and the package that has them."""
    characters = sorted(missing)
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
