"""What people read is in words of the trade (docs/glossary.md): none of these phrases in a template, or in a text that the code makes."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parent.parent
# Texts of these are read by developers alone.
UNREAD = ("migrations", "models", "storm", "bench")
# The glossary says what not to write.
MANUAL = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name != "glossary.md")]
# What "who" is never said of: it stands for a person or thing that is not named.
_NOBODY = (
    "and|or|but|than|that|of|to|for|from|by|with|on|at|in|is|are|was|were|what|when|which|says?|said|tells?|told|names?|named|knows?|known|"
    "shows?|sees?|asks?|decides?|decided|learns?|not|only|where|as|if"
)
# Each with what to write instead.
FORBIDDEN = {
    r"\bhanded out\b|\bhand(s|ing)? out (GPU|quota)": "allocated",
    r"\bput(s|ting)?( \w+)? out\b": "preempted, evicted",
    r"\blet(s|ting)?( \w+)? go\b(?! on)": "release",
    r"\bchoose none\b": "Clear selection",
    r"\bSM activity, (all|held)\b|\bthe gap costs\b|\bheld, not computing\b": "Utilization; Idle cost; allocated, not computing",
    r"\bnewest readings\b": "Updated",
    r"\bwhat it waits for or does\b": "Status",
    r"\bgoes along\b|\bcomes again by itself\b": "moves too; refreshes automatically",
    r"\bas things stand\b": "now",
    r"\bby yourself\b|\btake away\b": "from scratch; remove",
    r"\bit says no\b|\bsays nothing of\b|\bit names nothing\b": "No … specified",
    rf"(^|[^\w\s,]\s*|\b({_NOBODY}) )who(ever)?\b(?! (can|may|did|has|is|runs|owns|holds|should)\b.*\?)": (
        "name the person or thing; never a headless “who …”"
    ),
    r"\bwhom(ever)?\b": "name the person",
    r"(?<!there )\b(is|are) no (?!(longer|more|need|room|such)\b)[a-z]+[.:;,]": "is not a …",
}
_TAGS = re.compile(r"{%.*?%}|{#.*?#}|{{.*?}}", re.DOTALL)
_READ = re.compile(r'(?:title|aria-label|placeholder|alt)="([^"]*)"')
_SKIPPED = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


def template_texts(source: str) -> Iterator[str]:
    """What a template says: its text, and the attributes that are read out."""
    plain = _TAGS.sub("\n", source)
    yield from (found[1] for found in _READ.finditer(plain))
    yield from (line.strip() for line in _SKIPPED.sub("\n", plain).splitlines() if line.strip())


@cache
def code_texts(source: str) -> tuple[str, ...]:
    """The texts that code makes, without docstrings, a value within one as a word; names and formats have no blank in them."""
    return tuple(_code_texts(source))


def _code_texts(source: str) -> Iterator[str]:
    nodes = list(ast.walk(ast.parse(source)))
    documents = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body and isinstance(node.body[0], ast.Expr)
    }
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents | parts:
            text = node.value
        if " " in text.strip():
            yield text


_SCRIPT = re.compile(r"(?<!:)//[^\n]*|\"((?:[^\"\\\n]|\\.)*)\"|`((?:[^`\\]|\\.)*)`")


def script_texts(source: str) -> Iterator[str]:
    """The texts of a script with a blank in them, a value within one as a word; not its comments."""
    for found in _SCRIPT.finditer(source):
        text = re.sub(r"\$\{[^}]*\}", "x", found[1] or found[2] or "")
        if " " in text.strip():
            yield _SKIPPED.sub(" ", text)


def paragraphs(page: str) -> Iterator[str]:
    """The paragraphs, list items and rows of a page, each in one line."""
    yield from (" ".join(found.split()) for found in re.split(r"\n\s*\n|\n(?=\s*[-*|#])", page))


def faults(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for pattern, instead in FORBIDDEN.items():
            if re.search(pattern, text, re.IGNORECASE):
                yield f"“{text.strip()[:90]}”: write {instead}"


def test_no_page_says_a_forbidden_word():
    found = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in sorted((ROOT / "templates").rglob("*.html"))
        for fault in faults(template_texts(path.read_text()))
    ]
    mails = sorted((ROOT / "templates").rglob("*.txt"))
    found += [f"{path.name}: {fault}" for path in mails for fault in faults(template_texts(path.read_text()))]
    scripts = sorted((ROOT / "static" / "js").glob("*.js"))
    found += [f"{path.name}: {fault}" for path in scripts for fault in faults(script_texts(path.read_text()))]

    assert mails
    assert any("could not be loaded" in text for path in scripts for text in script_texts(path.read_text()))
    assert not found, "\n".join(found)


def test_no_text_of_the_code_says_a_forbidden_word():
    paths = [path for name in ("gpufleet", "scheduler", "quotas", "dashboards") for path in sorted((ROOT / name).rglob("*.py"))]
    read = [path for path in paths if not set(path.relative_to(ROOT).with_suffix("").parts) & set(UNREAD)]
    found = [f"{path.relative_to(ROOT)}: {fault}" for path in read for fault in faults(code_texts(path.read_text()))]
    found += faults((ROOT / "gpufleet" / "api_fields.yaml").read_text().splitlines())

    assert not found, "\n".join(found)


def test_no_page_of_the_manual_says_a_forbidden_word():
    found = [f"{path.relative_to(ROOT)}: {fault}" for path in MANUAL for fault in faults(paragraphs(path.read_text()))]

    assert not found, "\n".join(found)


# Tags within a sentence; values stand for one word each.
_WITHIN = re.compile(r"</?(a|abbr|b|code|em|i|kbd|small|span|strong|time)\b[^>]*>", re.IGNORECASE)
_VALUES = re.compile(r"{{.*?}}|{%\s*(bar|icon|moment|plural|status)\b.*?%}", re.DOTALL)
_NO_PROSE = re.compile(r"\b(INSERT|UPDATE|SELECT|COMPREPLY)\b|--[a-z]|[a-z]_[a-z]+ [a-z]+_[a-z]|\b[A-Z]\w+=\S+\n")
SENTENCE_ENDS = re.compile(r"(?<=[.!?:;])\s+")


def sentences(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from (one for one in SENTENCE_ENDS.split(text.strip()) if re.search("[A-Za-z]{2}", one) and not _NO_PROSE.search(one))


def test_no_table_is_headed_by_who_or_what():
    heads = re.compile(r"<(?:th|dt)\b[^>]*>(?:Who|What)</")
    found = [path.name for path in sorted((ROOT / "templates").rglob("*.html")) if heads.search(path.read_text())]

    assert not found


_APART = re.compile(r"(\d|\bx)\s%(?![\w(%}])")


def test_no_percent_stands_apart_from_its_number():
    found = [path.name for path in sorted((ROOT / "templates").rglob("*.html")) if re.search(r"(\d|\}\}) %(?!\})", path.read_text())]
    found += [f"{path.name}: {text[:90]}" for path in MANUAL for text in paragraphs(path.read_text()) if _APART.search(text)]
    paths = [path for name in ("gpufleet", "scheduler", "quotas", "dashboards") for path in sorted((ROOT / name).rglob("*.py"))]
    found += [f"{path.name}: {text.strip()[:90]}" for path in paths for text in code_texts(path.read_text()) if _APART.search(text)]
    scripts = sorted((ROOT / "static" / "js").glob("*.js"))
    found += [f"{path.name}: {text.strip()[:90]}" for path in scripts for text in script_texts(path.read_text()) if _APART.search(text)]

    assert not found, "\n".join(found)


def test_texts_are_short():
    """Half of them have at most eight words, and no sentence more than 25: readers are quick, and many read English as a second language."""
    pages = {path: _WITHIN.sub("", _VALUES.sub(" x ", path.read_text())) for path in sorted((ROOT / "templates").rglob("*.html"))}
    paths = [path for name in ("gpufleet", "scheduler", "quotas", "dashboards") for path in sorted((ROOT / name).rglob("*.py"))]
    found = [(path, one) for path, page in pages.items() for one in sentences(template_texts(page))]
    found += [(path, one) for path in paths if not set(path.parts) & {*UNREAD, "benchmarks.py"} for one in sentences(code_texts(path.read_text()))]

    assert len(found) > 5000
    assert median(len(one.split()) for _, one in found) <= 8
    assert [f"{path.relative_to(ROOT)}: {one}" for path, one in found if len(one.split()) > 25] == []


@pytest.mark.parametrize(
    ("text", "is_forbidden"),
    [
        ("14x is no length; write 14d", True),
        ("There is no level.", False),
        ("Handed out", True),
        ("Who waits for a GPU", True),
        ("Whom only his limits refuse", True),
        ("the lock goes to whoever waited longest", True),
        ("| 400 days | Who repartitioned a GPU. |", True),
        ("its owner, and who manages jobs of its team", True),
        ("[who holds it](reasons.md)", True),
        ("it decides who gets GPUs", True),
        ("sent to whomever it is for", True),
        ("Who can see this?", False),
        ("for people who can view costs, and those who may", False),
        ("its owner, who may still submit there", False),
        ("GPUs allocated", False),
    ],
)
def test_what_is_forbidden(text, is_forbidden):
    assert bool(list(faults(iter([text])))) is is_forbidden
