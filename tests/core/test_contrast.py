"""The colours keep WCAG AA in both themes, and states stay apart without green vision."""

import itertools
import re
from pathlib import Path

import pytest

from gpufleet.core.templatetags.shell import LOOKS

STATIC = Path(__file__).resolve().parents[2] / "static"
TOKENS = (STATIC / "css/tokens.css").read_text()
THEMES = ("light", "dark")
TONES = ("good", "move", "warn", "bad", "rest")
GROUNDS = ("ground", "surface", "sunken", "hover", "chosen")

TEXT = [
    *(("ink", ground) for ground in GROUNDS),
    *(("ink-soft", ground) for ground in GROUNDS),
    *(("link", ground) for ground in GROUNDS),
    *((tone, ground) for tone in TONES for ground in ("ground", "surface", "hover", f"{tone}-soft")),
    *(("ink", f"{tone}-soft") for tone in TONES),
    ("on-held", "held"),
    ("on-used", "used"),
    ("on-accent", "accent"),
    ("on-accent", "accent-strong"),
    ("danger", "surface"),
    ("on-danger", "danger"),
]
MARKS = [
    *(("edge", ground) for ground in ("ground", "surface", "hover")),
    *(("focus", ground) for ground in GROUNDS),
    *((mark, "surface") for mark in ("held", "used", "cell-edge", "hatch", "accent")),
    *((f"series-{number}", "surface") for number in range(10)),
]


def colours(theme: str) -> dict[str, str]:
    found = {name: (light, dark)[theme == "dark"] for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", TOKENS)}
    return found | dict(re.findall(r"--(heat-\d): (#\w{6})", TOKENS))


def linear(colour: str) -> list[float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def seen_without_green(colour: str) -> tuple[float, float, float]:
    """The colour in CIELAB as a deuteranope sees it (Machado and others, 2009, severity 1)."""
    rows = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
    red, green, blue = (min(1.0, max(0.0, sum(weight * part for weight, part in zip(row, linear(colour), strict=True)))) for row in rows)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def distance(one: str, other: str) -> float:
    return sum((a - b) ** 2 for a, b in zip(seen_without_green(one), seen_without_green(other), strict=True)) ** 0.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("text", "ground"), TEXT)
def test_text_can_be_read(theme, text, ground):
    known = colours(theme)

    assert contrast(known[text], known[ground]) >= 4.5, f"{text} on {ground}, {theme}"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("mark", "ground"), MARKS)
def test_marks_can_be_seen(theme, mark, ground):
    known = colours(theme)

    assert contrast(known[mark], known[ground]) >= 3, f"{mark} on {ground}, {theme}"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(TONES, 2), ("held", "used")])
def test_states_stay_apart_without_green_vision(theme, one, other):
    known = colours(theme)

    assert distance(known[one], known[other]) >= 20, f"{one} and {other}, {theme}"


def test_utilisation_only_ever_gets_lighter():
    """So it reads in grey too: printed, or by someone who sees no colour at all."""
    lightness = [luminance(colours("light")[f"heat-{step}"]) for step in range(10)]

    assert lightness == sorted(lightness)
    assert all(distance(colours("light")[f"heat-{step}"], colours("light")[f"heat-{step + 1}"]) >= 8 for step in range(9))


def test_every_tone_and_icon_of_a_state_is_drawn():
    icons = (STATIC / "css/icons.css").read_text()

    for name, look in LOOKS.items():
        assert look.tone in TONES, name
        assert f".icon-{look.icon} {{" in icons, name


def test_style_sheets_name_no_colour_of_their_own():
    """A colour outside tokens.css is one that no test here looks at."""
    for sheet in sorted((STATIC / "css").glob("*.css")):
        if sheet.name in ("tokens.css", "icons.css"):
            continue
        without_data = re.sub(r'url\("data:[^"]*"\)', "", sheet.read_text())
        assert re.findall(r"#[0-9a-f]{3,8}\b(?=[^{]*;)|\b(?:rgb|hsl)a?\(", without_data) == [], sheet.name


def test_style_sheets_ask_nobody_else():
    for sheet in sorted((STATIC / "css").glob("*.css")):
        assert not re.search(r"@import|url\(\s*['\"]?(?:https?:)?//", sheet.read_text()), sheet.name


@pytest.mark.parametrize("state", ["requested", "proposed", "waits", "waiting", "pending"])
def test_what_only_waits_is_not_amber(state):
    assert LOOKS[state].tone in ("move", "rest")
