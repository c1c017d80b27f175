"""Linear programs, and who solves them: one solver after the other, each with a bound on its time, and a count of who did and why others did not."""

import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

SECONDS = 2.0  # of one program and solver
CLOSED_FORM = "closed form"


@dataclass(frozen=True, slots=True)
class Program:
    """Maximise gains · x with 0 ≤ x ≤ most, where each row (places, factors) of x is at most its bound."""

    gains: Sequence[float]
    most: Sequence[float]
    rows: Sequence[tuple[Sequence[int], Sequence[float]]]
    bounds: Sequence[float]


class SolverError(Exception):
    """A solver gave no solution; the message says why."""


Solver = Callable[[Program, float], np.ndarray]


def _highs(method: str) -> Solver:
    def solve(program: Program, seconds: float) -> np.ndarray:
        if importlib.util.find_spec("highspy") is None:
            raise SolverError("highspy is not installed")
        import highspy

        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(program.gains), len(program.rows)
        model.sense_ = highspy.ObjSense.kMaximize
        model.col_cost_ = np.array(program.gains, dtype=float)
        model.col_lower_, model.col_upper_ = np.zeros(len(program.gains)), np.array(program.most, dtype=float)
        model.row_lower_ = np.full(len(program.rows), -highspy.kHighsInf)
        model.row_upper_ = np.array(program.bounds, dtype=float)
        matrix = model.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        matrix.start_ = np.cumsum([0, *(len(places) for places, _ in program.rows)])
        matrix.index_ = np.array([place for places, _ in program.rows for place in places])
        matrix.value_ = np.array([factor for _, factors in program.rows for factor in factors], dtype=float)

        class Quiet(highspy.Highs):
            def enableCallbacks(self) -> None:
                """None are wanted; with them it greets on standard output."""

        solver = Quiet()
        for name, value in (("output_flag", False), ("time_limit", seconds), ("solver", method), ("threads", 1)):
            solver.setOptionValue(name, value)
        solver.passModel(model)
        solver.run()
        status = solver.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise SolverError(solver.modelStatusToString(status).lower())
        return np.array(solver.getSolution().col_value)

    return solve


SOLVERS: tuple[tuple[str, Solver], ...] = (("HiGHS simplex", _highs("simplex")), ("HiGHS interior point", _highs("ipm")))


@dataclass(slots=True)
class Chain:
    """The solvers in their order. `solved` counts by solver, `failed` by solver and reason; what none of them solves is left to a closed form."""

    solvers: Sequence[tuple[str, Solver]] = SOLVERS
    seconds: float = SECONDS
    solved: Counter[str] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)

    def solve(self, program: Program) -> np.ndarray | None:
        for name, solver in self.solvers:
            try:
                found = solver(program, self.seconds)
                if found.shape != (len(program.gains),) or not np.isfinite(found).all():
                    raise SolverError("no numbers")
            except SolverError as fault:
                self.failed[name, str(fault)] += 1
            except Exception as fault:  # a library's own; an allocation is owed all the same
                self.failed[name, type(fault).__name__] += 1
            else:
                self.solved[name] += 1
                return found
        self.solved[CLOSED_FORM] += 1
        return None

    def told(self) -> dict[str, object]:
        """For the results: how many programs each solved, and what the others said."""
        failed = [{"solver": name, "reason": reason, "times": times} for (name, reason), times in sorted(self.failed.items())]
        return {"solved": dict(sorted(self.solved.items())), "failed": failed}
