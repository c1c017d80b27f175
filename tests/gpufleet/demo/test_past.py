"""The past over simulated days, in memory: after every step the world is one that a fleet could be in."""

from collections import Counter
from datetime import timedelta

import numpy as np
import pytest

from gpufleet.core.times import millis
from gpufleet.demo import fleet
from gpufleet.demo.activity import layouts_of, readings
from gpufleet.demo.hardware import Hardware, Machine, Share, SliceOf
from gpufleet.demo.past.history import Past
from gpufleet.demo.past.model import demo_step
from gpufleet.demo.past.world import Act, Moved, Placed, Released, World, held_by
from scheduler.jobs.transitions import may_become
from scheduler.models import HOLDING, JobState
from tests.builders import NOON


def hardware() -> Hardware:
    """The small plan without a database: keys are counted."""
    machines, slices, key = {}, [], 0
    for number, spot in enumerate(fleet.planned_nodes(fleet.PLANS["small"]), 1):
        gpus = tuple(range(number * 8, number * 8 + 8))
        for gpu in gpus if spot.sliced else ():
            for instance in fleet.LAYOUTS[gpu % len(fleet.LAYOUTS)]:
                key += 1
                profile = fleet.SLICED_BOARD.profile(instance.profile)
                assert profile is not None
                slices.append(SliceOf(key, gpu, number, instance.profile, fleet.SLICED_BOARD.charge_milli(profile)))
        machines[number] = Machine(
            number, spot.name, 1, spot.spine, spot.leaf, spot.gpu_type, spot.spare, spot.sliced, "healthy", millis(NOON), gpus, gpus
        )
    shares = {
        (f"veridia/{part}", name): Share(24_000, 96_000) for part in ("research/language", "products/search", "platform/data") for name in fleet.TYPES
    }
    return Hardware(machines, tuple(slices), shares)


def check(world: World, states: dict[int, str]) -> None:
    held: Counter[int] = Counter()
    for job in world.work.values():
        assert (job.state in HOLDING) == bool(job.seats), job
        if job.seats:
            assert sum(seat.milli for seat in job.seats) == job.milli, "half a gang"
        for seat in job.seats:
            held[seat.gpu] += seat.milli
            assert seat.gpu in world.hardware.machines[seat.node].gpus
        states[job.key] = job.state
    assert all(milli <= 1000 for milli in held.values()), "a GPU is held twice"
    for key, free in world.free.items():
        machine = world.hardware.machines[key]
        assert sorted([*free, *(gpu for gpu in machine.usable if held[gpu])]) == sorted(machine.usable)
    taken = [seat.slice for job in world.work.values() for seat in job.seats if seat.slice]
    assert len(taken) == len(set(taken))
    assert not set(taken) & set(world.free_slices)


def legal(acts: list[Act], states: dict[int, str]) -> None:
    for act in acts:
        if isinstance(act, Placed | Moved | Released):
            before = states[act.job.key]
            assert may_become(before, act.to), f"{before} -> {act.to}"
            states[act.job.key] = act.to


@pytest.mark.parametrize(("seed", "steps"), [(1, 700), pytest.param(2, 2_000, marks=pytest.mark.soak)])
def test_a_day_of_steps_never_leaves_the_rails(seed: int, steps: int) -> None:
    world, past, states = World(hardware(), ()), Past(first_number=1000), {}
    before, troubled = NOON, 0
    for number in range(steps):
        moment = before + timedelta(seconds=(2, 30, 47, 60)[number % 4], hours=7 if number % 500 == 333 else 0)
        acts = demo_step(world, seed=seed, before=millis(before), moment=millis(moment))
        legal(acts, states)
        for act in acts:
            assert millis(before) - 60_000 <= act.at <= millis(moment)
            past.record(act, world)
        check(world, states)
        troubled += any(machine.health in ("suspect", "draining") for machine in world.hardware.machines.values())
        before = moment
    ended = Counter(state for state, _ in past.final.values())
    assert ended[JobState.COMPLETED] > steps / 5
    assert ended[JobState.FAILED] > steps / 250
    assert 0.4 < troubled / number < 0.95, "a fleet in which nobody has anything to look after shows little"
    assert any(run.outcome == "preempted" for run in past.runs)
    assert len({turn.health for turn in past.turns}) >= 5


def test_readings_stay_within_what_a_byte_holds_and_silence_is_not_zero() -> None:
    stock = hardware()
    world, past = World(stock, ()), Past(first_number=1)
    for number in range(120):
        moment = millis(NOON + timedelta(minutes=number))
        for act in demo_step(world, seed=4, before=moment - 60_000, moment=moment):
            past.record(act, world)
        stock.machines[1].health = "down" if number > 60 else "healthy"
        (columns,) = readings(held_by(world), stock, layouts_of(stock), moment=moment).values()
        assert len(columns.sm_active) == 512
        read = columns.sm_active != 255
        assert columns.sm_active[read].max() <= 100
        for measure in (columns.tensor_active, columns.dram_active):
            assert np.all(measure[read] <= columns.sm_active[read]) and np.all((measure == 255) == ~read)
    assert 0 < columns.tensor_active[read].mean() < columns.sm_active[read].mean()
    first = columns.gpus == 8
    assert columns.sm_active[first].item() == 255
    assert columns.power_watts[first].item() == 65_535
