"""When a job is due as the fields of a form say it: days and a time of day. A cron expression is made of them, and read back into them.

What is not filled in is a `-` in the expression, so that half-made choices come back as they were.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

DAYS = {"MON": "Mon", "TUE": "Tue", "WED": "Wed", "THU": "Thu", "FRI": "Fri", "SAT": "Sat", "SUN": "Sun"}
WEEK = tuple(DAYS)
LONG = dict(zip(WEEK, ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays"), strict=True))
EVERY = (("week", "On days of the week"), ("month", "On a day of the month"), ("hour", "Every hour"), ("cron", "By a cron expression"))
OPEN = "-"
LATE_DAYS = ("29", "30", "31")  # which not every month has
# As cron counts: Sunday is 0, and 7 as well.
_NUMBERS = {str(number): number for number in range(8)} | {day: (number + 1) % 7 for number, day in enumerate(WEEK)}
_BEGUN = {"time": "02:00", "day": "1", "minute": "0"}


@dataclass(frozen=True, slots=True)
class Pattern:
    """`every` is a key of `EVERY`, or empty: not at all. Fields that it does not need keep what they begin with."""

    every: str
    days: tuple[str, ...] = WEEK
    time: str = _BEGUN["time"]
    day: str = _BEGUN["day"]
    minute: str = _BEGUN["minute"]
    cron: str = ""

    @property
    def expression(self) -> str:
        hour, _, minute = self.time.partition(":")
        at = f"{int(minute)} {int(hour)}" if re.fullmatch(r"\d\d:\d\d", self.time) else f"{OPEN} {OPEN}"
        match self.every:
            case "week":
                return f"{at} * * {_days_written(self.days)}"
            case "month":
                return f"{at} {self.day or OPEN} * *"
            case "hour":
                return f"{self.minute or OPEN} * * * *"
        return self.cron

    @property
    def words(self) -> str:
        """When it is due as people say it; what no field says is the expression itself."""
        match self.every:
            case "week":
                return f"{_days_told(self.days)} at {self.time}"
            case "month":
                which = "months that have one" if self.day in LATE_DAYS else "each month"
                return f"Day {self.day} of {which} at {self.time}"
            case "hour":
                return f"Every hour at :{int(self.minute):02}" if int(self.minute) else "Every hour"
        return _steps_told(self.cron) or self.cron

    @property
    def weekdays(self) -> list[tuple[str, str, bool]]:
        return [(day, label, day in self.days) for day, label in DAYS.items()]

    @property
    def choices(self) -> tuple[tuple[str, str], ...]:
        return EVERY

    @property
    def fault(self) -> str:
        """What has to be filled in yet; empty: nothing."""
        if self.every == "week" and not self.days:
            return "Choose a day."
        if self.every in ("week", "month") and not self.time:
            return "Choose a time."
        if self.every == "month" and not self.day:
            return "Choose a day of the month."
        if self.every == "cron" and self.cron in ("", OPEN):
            return "Enter an expression."
        return "Choose a minute." if self.every == "hour" and not self.minute else ""


def pattern_of(expression: str) -> Pattern:
    """The fields that say the same; where none do, the expression itself."""
    by_cron = Pattern("cron" if expression.strip() else "", cron=expression)
    parts = expression.upper().split()
    if len(parts) != 5 or parts[3] != "*":
        return by_cron
    minute, hour, day, _, week = parts
    time = _time(minute, hour)
    if day == "*" and time is not None and (days := _days_read(week)) is not None:
        return Pattern("week", days=days, time=time, cron=expression)
    if week == "*" and time is not None and (day == OPEN or _number(day, 1, 31)):
        return Pattern("month", day=day.strip(OPEN), time=time, cron=expression)
    if (hour, day, week) == ("*", "*", "*") and (minute == OPEN or _number(minute, 0, 59)):
        return Pattern("hour", minute=minute.strip(OPEN), cron=expression)
    return by_cron


def words_of(expression: str) -> str:
    found = pattern_of(expression)
    return expression if found.fault else found.words


def pattern_sent(field: str, text: Callable[[str], str | None], many: Callable[[str], list[str]]) -> Pattern:
    """What a form sent as `FIELD-every`, `FIELD-days` and so on, beside the expression itself as `FIELD`."""
    cron = (text(field) or "").strip()
    every = text(f"{field}-every")
    if every is None:  # another program's form, which knows only the expression
        return pattern_of(cron)
    chosen = many(f"{field}-days")
    rest = {name: (text(f"{field}-{name}") or "").strip() for name in _BEGUN}
    sent = Pattern(every, days=tuple(day for day in WEEK if day in chosen), cron=cron, **rest)
    # Whoever changed nothing keeps the words of the expression: 1-5 stays 1-5.
    before = pattern_of(cron)
    return before if before.every == every and before.expression == sent.expression else _with_cron(sent)


def _with_cron(sent: Pattern) -> Pattern:
    if sent.every not in dict(EVERY):
        return Pattern("")
    if sent.every == "cron":
        return replace(sent, cron=sent.cron or OPEN)
    return Pattern(sent.every, sent.days, sent.time, sent.day, sent.minute, sent.expression)


def _number(text: str, least: int, most: int) -> bool:
    return re.fullmatch(r"\d{1,2}", text, re.ASCII) is not None and least <= int(text) <= most


def _time(minute: str, hour: str) -> str | None:
    if (minute, hour) == (OPEN, OPEN):
        return ""
    return f"{int(hour):02}:{int(minute):02}" if _number(minute, 0, 59) and _number(hour, 0, 23) else None


def _days_told(days: tuple[str, ...]) -> str:
    if days in (WEEK, WEEK[:5]):
        return "Every day" if days == WEEK else "Monday to Friday"
    return LONG[days[0]] if len(days) == 1 else ", ".join(DAYS[day] for day in days)


def _steps_told(expression: str) -> str:
    """Every so many minutes or hours, where these fill the hour or the day; else nothing."""
    if found := re.fullmatch(r"(?:\*/(\d{1,2}) \*|(\d{1,2}) \*/(\d{1,2})) \* \* \*", " ".join(expression.split()), re.ASCII):
        minutes, minute, hours = (int(part) if part else 0 for part in found.groups())
        if minutes and 60 % minutes == 0:
            return f"Every {minutes} minutes" if minutes > 1 else "Every minute"
        if hours > 1 and 24 % hours == 0 and minute < 60:
            return f"Every {hours} hours from 00:{minute:02}"
    return "Every minute" if expression.split() == ["*"] * 5 else ""


def _days_written(days: tuple[str, ...]) -> str:
    if days == WEEK:
        return "*"
    # No range of cron ends with Sunday by its name.
    is_range = len(days) > 2 and days[-1] != "SUN" and WEEK.index(days[-1]) - WEEK.index(days[0]) == len(days) - 1
    return f"{days[0]}-{days[-1]}" if is_range else ",".join(days) or OPEN


def _days_read(text: str) -> tuple[str, ...] | None:
    if text in ("*", OPEN):
        return WEEK if text == "*" else ()
    found: set[str] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        begin, end = _NUMBERS.get(first), _NUMBERS.get(last if dash else first)
        if begin is None or end is None or end < begin:
            return None
        found.update(WEEK[(number - 1) % 7] for number in range(begin, end + 1))
    return tuple(day for day in WEEK if day in found)
