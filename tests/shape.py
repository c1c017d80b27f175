"""The size and shape of the engine, as `python -m tests.shape` tells it: lines, functions, and what stands out."""

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

SCHEDULER = Path(__file__).parent.parent / "scheduler"
ENGINE, READER = SCHEDULER / "engine", SCHEDULER / "scenarios"
MOST_METHODS, MOST_ATTRIBUTES = 30, 20


def attributes(node: ast.ClassDef) -> set[str]:
    """What its methods set on `self`."""
    targets = (each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
    return {each.attr for each in targets if isinstance(each.value, ast.Name) and each.value.id == "self"}


def lines(package: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in package.rglob("*.py"))


def told() -> Iterator[str]:
    functions, large = [], []
    for path in sorted(ENGINE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
            elif isinstance(node, ast.ClassDef):
                methods, fields = sum(isinstance(each, ast.FunctionDef) for each in node.body), len(attributes(node))
                if methods > MOST_METHODS or fields > MOST_ATTRIBUTES:
                    large.append(f"{node.name} in {path.relative_to(ENGINE)}: {methods} methods, {fields} attributes")
    functions.sort()
    yield f"{lines(ENGINE)} lines, and {lines(READER)} of what reads scenarios for it"
    yield f"{len(functions)} functions: median {median(functions):g} lines, p90 {functions[len(functions) * 9 // 10]}, longest {functions[-1]}"
    yield f"{len(large)} classes of more than {MOST_METHODS} methods or {MOST_ATTRIBUTES} attributes:"
    yield from (f"  {one}" for one in large)


if __name__ == "__main__":
    print("\n".join(told()))
