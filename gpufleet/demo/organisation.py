"""The demo's company: its tree of quotas, its people, and what a GPU hour costs there."""

from dataclasses import dataclass

from gpufleet.demo.fleet import A100, H100, L40S
from quotas.models import Role

PASSWORD = "gpufleet-demo"  # noqa: S105 - shown on the sign-in page
ORG, ORG_TITLE = "veridia", "Veridia"
MAIL_DOMAIN = "veridia.example"


@dataclass(frozen=True, slots=True)
class Team:
    """`parts`: percent of the department's guarantee per type. `limit`: percent of the team's own guarantee that it may reach by borrowing."""

    name: str
    title: str
    parts: dict[str, int]
    limit: int = 250
    weight: int = 1
    projects: tuple[tuple[str, str, int], ...] = ()  # name, title, percent of the team's guarantee


@dataclass(frozen=True, slots=True)
class Department:
    name: str
    title: str
    cost_centre: str
    parts: dict[str, int]  # percent of the organisation's guarantee per type
    weight: int
    teams: tuple[Team, ...]


DEPARTMENTS = (
    Department(
        "research",
        "Research",
        "CC-4100",
        {H100: 60, A100: 30, L40S: 10},
        3,
        (
            Team(
                "language",
                "Language models",
                {H100: 50, A100: 30, L40S: 20},
                220,
                3,
                (("atlas", "Atlas", 65), ("instruct", "Instruction tuning", 30)),
            ),
            Team("vision", "Vision", {H100: 24, A100: 30, L40S: 30}, 250, 2, (("iris", "Iris", 60), ("video", "Video", 40))),
            Team("speech", "Speech", {H100: 12, A100: 25, L40S: 30}, 300, 1),
            Team("control", "Learning and control", {H100: 12, A100: 15, L40S: 20}, 300, 1),
        ),
    ),
    Department(
        "products",
        "Products",
        "CC-4200",
        {H100: 26, A100: 40, L40S: 65},
        2,
        (
            Team("assistant", "Assistant", {H100: 50, A100: 30, L40S: 30}, 200, 3, (("chat", "Chat", 70), ("tools", "Tools", 30))),
            Team("search", "Search", {H100: 20, A100: 30, L40S: 35}, 250, 2),
            Team("recommend", "Recommendations", {H100: 20, A100: 20, L40S: 20}, 250, 2),
            Team("safety", "Trust and safety", {H100: 10, A100: 20, L40S: 15}, 300, 1),
        ),
    ),
    Department(
        "platform",
        "Platform",
        "CC-4300",
        {H100: 12, A100: 25, L40S: 20},
        1,
        (
            Team("evaluation", "Evaluation", {H100: 40, A100: 25, L40S: 25}, 400, 2),
            Team("data", "Data", {H100: 15, A100: 30, L40S: 30}, 300, 1, (("curation", "Curation", 60), ("embeddings", "Embeddings", 40))),
            Team("simulation", "Simulation", {H100: 20, A100: 25, L40S: 30}, 300, 1),
            Team("systems", "Systems", {H100: 25, A100: 20, L40S: 15}, 300, 1),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Person:
    username: str
    name: str
    role: str
    path: str
    signs_in: bool = False


# One person a role, to sign in as.
GUIDES = (
    Person("root", "Robin Okafor", Role.SUPERUSER, "veridia", True),
    Person("oona", "Oona Virtanen", Role.OPERATOR, "veridia", True),
    Person("quentin", "Quentin Mercier", Role.QUOTA_ADMIN, "veridia", True),
    Person("fay", "Fay Nakamura", Role.FINANCE, "veridia", True),
    Person("tessa", "Tessa Lindholm", Role.TEAM_LEAD, "veridia/research/language", True),
    Person("sam", "Sam Adeyemi", Role.SUBMITTER, "veridia/research/language", True),
    Person("vic", "Vic Moreau", Role.VIEWER, "veridia/research", True),
)

# Team path -> (user name, full name); the first of each leads the team.
MEMBERS: dict[str, tuple[tuple[str, str], ...]] = {
    "veridia/research/language": (("mirela", "Mirela Petrov"), ("jonas", "Jonas Weidmann"), ("aiko", "Aiko Tanabe")),
    "veridia/research/vision": (("ines", "Inês Carvalho"), ("dmitri", "Dmitri Volkov"), ("lara", "Lara Svensson")),
    "veridia/research/speech": (("emeka", "Emeka Nwosu"), ("hana", "Hana Kovář")),
    "veridia/research/control": (("luca", "Luca Ferrante"), ("priya", "Priya Raghavan")),
    "veridia/products/assistant": (("nadia", "Nadia El-Amin"), ("owen", "Owen Gallagher"), ("mei", "Mei Zhao")),
    "veridia/products/search": (("pavel", "Pavel Hruška"), ("amara", "Amara Diallo")),
    "veridia/products/recommend": (("sofia", "Sofía Ibarra"), ("tom", "Tom Achterberg")),
    "veridia/products/safety": (("grace", "Grace Mbeki"), ("yusuf", "Yusuf Demir")),
    "veridia/platform/evaluation": (("ruth", "Ruth Ostrowska"), ("kenji", "Kenji Mori")),
    "veridia/platform/data": (("elena", "Elena Marchetti"), ("bram", "Bram de Wit")),
    "veridia/platform/simulation": (("zara", "Zara Whitcombe"), ("idris", "Idris Bello")),
    "veridia/platform/systems": (("noor", "Noor van Dijk"), ("felix", "Felix Baumann")),
}

# Days before today on which a card began, and what it said of each type: list and contracted price of a GPU hour in micro-units. Prices fell once.
CARDS: tuple[tuple[int, str, dict[str, tuple[int, int]]], ...] = (
    (420, "Founding prices", {H100: (3_950_000, 3_650_000), A100: (2_200_000, 2_050_000), L40S: (1_400_000, 1_280_000)}),
    (110, "Renewed contract", {H100: (3_600_000, 3_100_000), A100: (1_980_000, 1_750_000), L40S: (1_250_000, 1_100_000)}),
)
# Off the contracted price for borrowed GPUs, in millionths.
BORROWED_DISCOUNT = 300_000


def people() -> list[Person]:
    members = [
        Person(username, name, Role.TEAM_LEAD if place == 0 and path != "veridia/research/language" else Role.SUBMITTER, path)
        for path, team in MEMBERS.items()
        for place, (username, name) in enumerate(team)
    ]
    return [*GUIDES, *members]
