"""How times are spelt, once for the three that spell them: the pages' tags, the browser's script and the command line."""

# Seconds before (above 0) or after (below 0) now.
RELATIVE = [
    (0, "just now"),
    (4, "just now"),
    (59, "59 s ago"),
    (60, "1 min ago"),
    (3599, "59 min ago"),
    (7199, "1 h ago"),
    (7200, "2 h ago"),
    (86_400 * 1040, "1,040 d ago"),
    (-0.4, "in a moment"),
    (-4, "in a moment"),
    (-5, "in 5 s"),
    (-59, "in 59 s"),
    (-59.5, "in 1 min"),
    (-61, "in 2 min"),
    (-3540, "in 59 min"),
    (-3541, "in 1 h"),
    (-7139, "in 1 h 59 min"),
    (-86_399, "in 1 d"),
    (-86_400, "in 1 d"),
    (-86_401, "in 1 d 1 h"),
    (-183_500, "in 2 d 3 h"),
]
DURATIONS = [
    (0, "0 s"),
    (45.9, "45 s"),
    (59.9, "59 s"),
    (720, "12 min"),
    (3599, "59 min"),
    (3600, "1 h"),
    (12_000, "3 h 20 min"),
    (86_400, "1 d"),
    (86_700, "1 d"),
    (187_200, "2 d 4 h"),
    (86_400 * 1040, "1,040 d"),
]
# Minutes after 2026-11-20 12:00 UTC: the predicted start, its earliest and its latest.
STARTS = [
    ((60, 30, 90), "starts 12:30–13:30 UTC"),
    ((60, 0, 90), "starts by 13:30 UTC"),
    ((60, -30, 90.5), "starts by 13:30 UTC"),
    ((900, 690, 1500), "starts 23:30–21 Nov 13:00 UTC"),
    ((900, 780, 900.9), "starts 21 Nov 01:00–03:00 UTC"),
    ((900, -5, 16_500), "starts by 1 Dec 23:00 UTC"),
    ((60, 60, 60.5), "starts in 1 h"),
    ((60, -60, -1), "starts in 1 h"),
    ((0, -30, 90), "starts any moment"),
    ((-3, -30, 90), "late by 3 min"),
]
