"""What is followed job by job and leaf by leaf is what would be found by looking at everything."""

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine.model.reasons import reason
from scheduler.engine.place.placement import fit
from scheduler.engine.place.slots import SlotCounts
from scheduler.engine.search.units import Units
from scheduler.engine.state.charged import Standing
from scheduler.engine.state.form import Form
from scheduler.engine.state.planning import Cycle
from scheduler.scenarios.reading import parse
from tests.scheduler.engine.test_bounds import lowest_of
from tests.scheduler.twin.strategies import scenario_random

A_WHY = reason("reclaim", "a trial")
drawn = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def stir(cycle: Cycle, chance: random.Random) -> None:
    """Put somebody out, or take back what was done so far."""
    cluster = cycle.cluster
    standing = [work for work in cluster.works if work.seats]
    if standing and chance.random() < 0.8:
        one = chance.choice(standing)
        some = one.seats[-1:] if chance.random() < 0.3 else one.seats
        leaf, quota_type = one.charged_leaf, one.quota_type
        cluster.unseat(one, some, A_WHY, None)
        if chance.random() < 0.3:  # or is moved, to where it stood
            for seat in some:
                cluster.fleet.take(seat)
            cluster.seat(one, some, quota_type, leaf, A_WHY)
            one.moved = True
    else:
        cluster.undo(0)
    cycle.changed()


@drawn
@given(st.integers(0, 10**6), st.sampled_from(["small", "medium"]))
def test_what_stands_below_a_leaf_is_followed(seed: int, size: str):
    cycle, chance = Cycle(parse(scenario_random(seed, size))), random.Random(seed)
    leaves = [place for place in range(1, len(cycle.tree.names)) if not cycle.tree.children[place]]
    for _ in range(6):
        anew, units = Standing(cycle.cluster), Units(cycle.cluster, Standing(cycle.cluster))
        for leaf in leaves:
            assert cycle.standing.lowest(leaf) == anew.lowest(leaf) == lowest_of(units.of_leaf(leaf))
            for form in cycle.cluster.forms.values():
                for quota_type in form.types:
                    assert cycle.standing.freeable_below(leaf, quota_type, form.level) == anew.freeable_below(leaf, quota_type, form.level)
        stir(cycle, chance)


@drawn
@given(st.integers(0, 10**6), st.sampled_from(["small", "medium"]))
def test_units_of_some_leaves_are_those_of_all(seed: int, size: str):
    """Also after somebody has changed, and the unit of who has not is the same object still."""
    cycle, chance = Cycle(parse(scenario_random(seed, size))), random.Random(seed)
    tree, some = cycle.tree, cycle.units()
    leaves = [place for place in range(1, len(tree.names)) if not tree.children[place]]
    for _ in range(6):
        everyone = Units(cycle.cluster, Standing(cycle.cluster))
        for leaf in chance.sample(leaves, len(leaves) // 2 + 1):
            assert [unit.key for unit in some.of_leaf(leaf)] == [unit.key for unit in everyone.of_leaf(leaf)]
            for work in {unit.work for unit in some.of_leaf(leaf)}:
                assert [unit.key for unit in some.units_of(work.order)] == [unit.key for unit in everyone.units_of(work.order)]
            for division in tree.divisions:
                outside = {unit.key for unit in everyone.borrowed(leaf, division)}
                assert {unit.key for unit in some.borrowed(leaf, division)} == outside
        standing = [work for work in cycle.cluster.works if work.seats]
        if standing and chance.random() < 0.8:
            one = chance.choice(standing)
            cycle.cluster.unseat(one, one.seats, A_WHY, None)
        else:
            cycle.cluster.undo(0)
        cycle.changed()
        kept = [unit for mine in some._leaves.values() for unit in mine]
        known = [unit for unit in kept if some._is_known(unit.work)]
        assert cycle.units() is some
        assert all(unit in some.of_leaf(unit.leaf) for unit in known)


def same_room(known: SlotCounts, anew: SlotCounts, form: Form, quota_type: int) -> None:
    assert known.could_fit(form, quota_type) == anew.could_fit(form, quota_type)
    if form.largest is not None:
        assert known.useless(form, form.largest, quota_type) == anew.useless(form, form.largest, quota_type)
    for place, role in enumerate(form.kind.roles):
        assert known.nodes_for(role) == anew.nodes_for(role)
        eligible = form.eligible(place, quota_type, suspect=form.kind.tolerates_suspect, spare=False)
        for level in {-1, form.width}:
            assert known.sums(role, eligible, level).tolist() == anew.sums(role, eligible, level).tolist()


@drawn
@given(st.integers(0, 10**6), st.sampled_from(["small", "medium"]))
def test_room_that_is_kept_up_to_date_is_that_of_the_view_as_it_is(seed: int, size: str):
    """Whoever has come or gone or was only tried, and however much happened since somebody asked."""
    cycle, chance = Cycle(parse(scenario_random(seed, size))), random.Random(seed)
    cluster = cycle.cluster
    for _ in range(8):
        for view in cycle.fleet.views():
            for form in cluster.forms.values():
                for quota_type in form.types if chance.random() < 0.7 else ():
                    same_room(cycle.slots(view), SlotCounts(cycle.grid, view.copy()), form, quota_type)
        mark = cluster.mark()
        for work in [work for work in cluster.works if not work.seats and not work.evicted][:3]:
            if work.types and (seats := fit(cycle, work, work.types[0], cycle.fleet.views()[-1])) is not None:
                cluster.seat(work, seats, work.types[0], work.home, A_WHY)
        for _ in range(chance.choice((0, 1, 6))):
            stir(cycle, chance)
            mark = min(mark, cluster.mark())
        if chance.random() < 0.3:
            cluster.undo(mark)
