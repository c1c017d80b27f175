"""What people of the demo's company ask for now: the same in its past and in its present. Time and chance are arguments."""

import random
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass

from gpufleet.demo.hardware import Hardware
from gpufleet.demo.workloads import SLICE_PROFILES, WEIGHTS, WORKLOADS, Want, Workload, names_of, submitters, team_of
from scheduler.simulation.telemetry import day_curve

SUBMITTERS = submitters()
Line = tuple[str, str, str]  # workload, GPU type, profile


@dataclass(frozen=True, slots=True)
class Asked:
    at: int
    want: Want


class Demand:
    def __init__(self, hardware: Hardware, *, rng: random.Random, moment: int, span: int) -> None:
        self.hardware, self.rng, self.moment, self.span = hardware, rng, moment, span
        self.lines = self._wanted()

    def _wanted(self) -> dict[Line, tuple[Workload, int]]:
        """What every kind of work asks for now, by type and profile, in milli-GPU."""
        day = day_curve(self.moment)
        found: dict[Line, tuple[Workload, int]] = {}
        for workload in WORKLOADS:
            level = (1 + workload.swing * (2 * day - 1)) * self.hardware.pressure / 100
            for gpu_type, percent in workload.wanted.items():
                if workload.slices:
                    for kind in SLICE_PROFILES:
                        count = self.hardware.slice_count.get(kind.profile, 0)
                        found[workload.key, gpu_type, kind.profile] = (workload, int(count * WEIGHTS[kind.profile] * percent / 100 * level))
                else:
                    capacity = self.hardware.capacity.get(gpu_type, 0)
                    found[workload.key, gpu_type, ""] = (workload, int(capacity * 10 * percent * level))
        return found

    def surplus(self, have: Mapping[Line, int]) -> dict[Line, int]:
        """By how much services exceed what the hour asks for."""
        return {line: have.get(line, 0) - int(1.08 * wanted) for line, (_, wanted) in self.lines.items()}

    def arrivals(self, have: Mapping[Line, int], asked: MutableMapping[tuple[str, str], int], earliest: int) -> Iterator[Asked]:
        """Who asks for more. `have` is what there is of each line, `asked` what each team asked for by type; it grows with what is asked."""
        grows = sum(self.hardware.capacity.values()) / 440
        for line, (workload, wanted) in self.lines.items():
            _, gpu_type, profile = line
            pace = workload.arrival_seconds * 1000 * self.stretch(workload) / grows
            missing, expected = wanted - have.get(line, 0), self.span / pace
            # Somebody who starts the day with nothing asks for all of it at once; a person never does.
            for _ in range(8):
                if missing <= 0 or self.rng.random() >= expected:
                    break
                expected /= 2
                want = self._want(workload, gpu_type, profile, wanted)
                team = (team_of(want.quota), gpu_type)
                if want.milli > missing + want.milli // 2 or self._beyond(team, want, asked.get(team, 0)):
                    break
                missing -= want.milli
                asked[team] = asked.get(team, 0) + want.milli
                yield Asked(self.moment - int(self.rng.random() * min(self.span, self.moment - earliest)), want)

    def stretch(self, workload: Workload) -> int:
        """How much longer work of a kind runs on this fleet."""
        return self.hardware.stretch if workload.quick else 1

    def work_seconds(self, workload: Workload) -> int:
        """How long one runs: at least the floor of its kind, and then as chance has it."""
        floor, mean = (minutes * 60 * self.stretch(workload) for minutes in workload.minutes)
        return int(floor + self.rng.expovariate(1 / mean))

    def _beyond(self, team: tuple[str, str], want: Want, asked: int) -> bool:
        """Whether nobody would ask for so much: people know their team's limit. What is to run now stays a little below it with all that was asked;
        what can wait is put into the queue as long as it fits at all."""
        share = self.hardware.shares.get(team)
        if share is None or share.limit is None:
            return False
        return want.milli > share.limit if want.workload.can_wait else asked + want.milli > share.limit * 9 // 10

    def _want(self, workload: Workload, gpu_type: str, profile: str, wanted: int) -> Want:
        rng = self.rng
        shapes = [(gpus, weight) for gpus, weight in workload.shapes if gpus * 1000 <= max(wanted, 1000)] or [workload.shapes[0]]
        gpus = rng.choices([gpus for gpus, _ in shapes], [weight for _, weight in shapes])[0]
        quota = rng.choices([path for path, _ in workload.teams], [weight for _, weight in workload.teams])[0]
        return Want(
            workload=workload,
            name=rng.choice(names_of(workload, quota)).format(n=rng.randrange(2, 990)),
            quota=quota,
            username=rng.choice(SUBMITTERS[team_of(quota)]),
            priority=rng.choice(workload.priorities),
            gpu_type=gpu_type,
            gpus=gpus,
            profile=profile,
            labels={"workload": workload.key},
        )
