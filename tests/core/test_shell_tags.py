"""The tags that every page is written with."""

from datetime import UTC, datetime, timedelta

import pytest
from django.template import Context, Template
from django.utils import timezone

from gpufleet.core.templatetags import shell
from quotas.models import Role
from scheduler.models import GpuMode, Health, JobState
from tests.spelled import DURATIONS, RELATIVE, STARTS

NOON = datetime(2026, 11, 20, 12, 0, 0, 250_000, tzinfo=UTC)


def render(text: str, **context: object) -> str:
    return Template("{% load shell %}" + text).render(Context(context))


@pytest.mark.parametrize("value", [*Health, *JobState, *Role, *GpuMode])
def test_every_state_has_its_own_icon_word_and_tone(value):
    html = render("{% status value %}", value=value)

    assert str(value) in shell.LOOKS, f"{value!r} has no look in gpufleet/core/templatetags/shell.py"
    assert f">{value.label}<".lower() in html.replace("</i>", ">").lower()
    assert "icon-" in html and "tone-" in html


def test_states_of_one_kind_do_not_share_icon_and_tone():
    """Colour may fade, so two states of one column differ in shape as well."""
    looks = [shell.LOOKS[state] for state in Health]

    assert len({(look.tone, look.icon) for look in looks}) == len(looks)


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("Jobs hurt", "Jobs hurt"),
        ("Wasted GPU-hours", '<span>Wasted <span class="nowrap">GPU-hours</span></span>'),
        ("A <b>-c", '<span>A <span class="nowrap">&lt;b&gt;-c</span></span>'),
    ],
)
def test_a_head_breaks_between_words_and_not_at_a_hyphen(head, told):
    assert render("{{ head|unbroken }}", head=head) == told


def test_a_state_nobody_knows_is_shown_quietly_and_escaped():
    assert "Odd &lt;b&gt; state" in render("{% status value %}", value="odd_<b>_state")
    assert 'title="Not known"' in render("{% status value %}", value=None)


def test_a_moment_says_both_how_long_ago_and_when_exactly():
    html = render("{{ when|moment }}", when=timezone.now() - timedelta(minutes=5, seconds=10))

    assert "5\N{NO-BREAK SPACE}min ago" in html
    assert 'data-moment="relative"' in html
    assert "UTC" in html


def test_a_moment_for_logs_is_absolute_and_a_missing_one_says_never():
    assert ">2026-11-20 12:00:00 UTC<" in render('{{ when|moment:"absolute" }}', when=NOON)
    assert 'data-moment="minute" title="2026-11-20 12:00:00 UTC">2026-11-20 12:00 UTC<' in render('{{ when|moment:"minute" }}', when=NOON)
    assert 'datetime="2026-11-20T12:00:00.250Z"' in render("{{ when|moment }}", when=NOON)
    assert 'title="Never"' in render("{{ when|moment }}", when=None)


def test_what_was_expected_earlier_comes_at_any_moment():
    assert "in 3" in render('{{ when|moment:"ahead" }}', when=timezone.now() + timedelta(hours=3, minutes=1))
    assert 'data-moment="ahead"' in render('{{ when|moment:"ahead" }}', when=NOON)
    assert ">any moment<" in render('{{ when|moment:"ahead" }}', when=timezone.now() - timedelta(seconds=1))
    assert ">for 5\xa0min<" in render('{{ when|moment:"for" }}', when=timezone.now() - timedelta(minutes=5, seconds=10))
    assert ">just now<" in render('{{ when|moment:"for" }}', when=timezone.now())


@pytest.mark.parametrize(("seconds", "said"), RELATIVE)
def test_relative_times_are_never_told_as_too_early(seconds, said):
    assert shell.relative(NOON - timedelta(seconds=seconds), NOON).replace("\xa0", " ") == said


@pytest.mark.parametrize(("minutes", "said"), STARTS)
def test_a_predicted_start_is_told_as_its_time_range(minutes, said):
    at, *window = (NOON.replace(microsecond=0) + timedelta(minutes=each) for each in minutes)
    assert shell.starts(at, NOON.replace(microsecond=0), tuple(window)).replace("\xa0", " ") == said


def test_a_team_is_called_by_its_own_name_with_its_path_in_the_tooltip():
    assert render("{{ path|team }}", path="acme/research/nlp") == '<span class="team" title="acme/research/nlp">nlp</span>'
    assert render("{{ path|team }}", path="acme") == '<span class="team" title="acme">acme</span>'
    assert "<b>" not in render("{{ path|team }}", path="acme/<b>")


def test_a_start_without_a_range_is_told_as_before():
    soon = timezone.now() + timedelta(minutes=16)
    assert render("{% start_told when %}", when=soon) == render('{{ when|moment:"start" }}', when=soon)
    html = render("{% start_told when window %}", when=soon, window=(soon - timedelta(minutes=10), soon + timedelta(minutes=10)))
    assert html.count("data-moment") == html.count("data-from") == html.count("data-until") == 1
    assert "between " in html and "–" in html


@pytest.mark.parametrize(
    ("milli", "said"), [(12_000, "12"), (500, "0.5"), (1_024_000, "1,024"), (10_250, "10.25"), (0, "0"), (100_000, "100"), (None, "–")]
)
def test_gpus(milli, said):
    assert render("{{ milli|gpus }}", milli=milli) == said


@pytest.mark.parametrize(("milli", "said"), [(None, "–"), (0, "0"), (37_375, "37.4"), (50, "<0.1"), (950, "1"), (1_024_125, "1,024.1")])
def test_gpus_in_tenths(milli, said):
    assert shell.gpus_tenths(milli) == said


@pytest.mark.parametrize(
    ("micros", "decimals", "said"),
    [(1_204_500_000, 2, "$1,204.50"), (-5_000_000, 2, "−$5.00"), (2_497_500, 4, "$2.4975"), (999_900_000, 0, "$1,000"), (None, 2, "–")],
)
def test_money(micros, decimals, said):
    assert render("{{ micros|money:decimals }}", micros=micros, decimals=decimals) == said


def test_money_of_a_currency_without_a_sign_is_named(settings):
    settings.CURRENCY = "CHF"

    assert render("{{ micros|money }}", micros=12_000_000) == "CHF\xa012.00"


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [(83, 100, "83%"), (1, 1000, "&lt;1%"), (999, 1000, "&gt;99%"), (0, 5, "0%"), (5, 5, "100%"), (1, 0, "–"), (None, 4, "–")],
)
def test_percent_never_rounds_to_nothing_or_to_all(part, whole, said):
    assert render("{{ part|percent_of:whole }}", part=part, whole=whole) == said


@pytest.mark.parametrize(("mib", "said"), [(512, "512 MiB"), (81_920, "80 GiB"), (81_559, "79.6 GiB"), (1_572_864, "1.5 TiB"), (None, "–")])
def test_memory(mib, said):
    assert render("{{ mib|memory }}", mib=mib).replace("\xa0", " ") == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [*DURATIONS, (timedelta(hours=1), "1 h"), (None, "–")],
)
def test_duration(seconds, said):
    assert render("{{ seconds|duration }}", seconds=seconds).replace("\xa0", " ") == said


def test_plural():
    assert render('{% plural 1 "GPU" %}, {% plural 2000 "GPU" %}, {% plural 0 "entry" "entries" %}') == "1 GPU, 2,000 GPUs, 0 entries"


def test_a_bar_has_a_name_a_value_and_no_style_attribute():
    html = render("{% bar 30 40 label %}", label="Memory of <gpu>")

    assert 'value="30" max="40" aria-label="Memory of &lt;gpu&gt;" title="75%"' in html
    assert "style" not in html
