"""Names in PDF files: Helvetica where it has all letters, else DejaVu Sans (Latin, Greek, Cyrillic), which is embedded. A character that neither has
is written as its code point, `[U+6771 U+4EAC]`: nothing is left out, and nothing looks like another name.
"""

import re
import unicodedata
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "fonts"
PLAIN, BOLD = "DejaVuSans", "DejaVuSans-Bold"


@cache
def _letters() -> frozenset[int]:
    """What the fonts have. They are registered on the way."""
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.ttfonts import TTFont

    fonts = [TTFont(name, FOLDER / f"{name}.ttf") for name in (PLAIN, BOLD)]
    for font in fonts:
        pdfmetrics.registerFont(font)
    return frozenset(fonts[0].face.charToGlyph).intersection(fonts[1].face.charToGlyph)


def lettered(text: str, *, bold: bool = False) -> tuple[str, str]:
    """The font, and the text as that font can write it."""
    text = unicodedata.normalize("NFC", text)
    try:
        text.encode("cp1252")
    except UnicodeEncodeError:
        known = _letters()
        missing = "".join(sorted({re.escape(letter) for letter in text if ord(letter) not in known}))
        return BOLD if bold else PLAIN, re.sub(f"[{missing}]+", _points, text) if missing else text
    return "Helvetica-Bold" if bold else "Helvetica", text


def _points(found: re.Match[str]) -> str:
    return "[" + " ".join(f"U+{ord(letter):04X}" for letter in found[0]) + "]"
