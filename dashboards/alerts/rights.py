"""Who may act on alerts, silences and rules: operators, and on those of costs also people who see costs everywhere."""

from dashboards.alerts.figures import COSTS, FIGURES
from quotas.permissions import Access, Can

# Of those who see costs everywhere each has one of these; a token that only reads has none.
ACTS = (Can.OPERATE, Can.MANAGE_COSTS, Can.EDIT_QUOTA, Can.MANAGE_PEOPLE)


def may_act(access: Access, figure: str = "") -> bool:
    """On what is of a figure; without one, on what is of all of them."""
    return access.can_everywhere(Can.OPERATE) or (figure in COSTS and _acts_on_costs(access))


def must_act(access: Access, figure: str = "") -> None:
    if may_act(access, figure):
        return
    if figure in COSTS:
        raise access.refusal(*(ACTS if access.can_everywhere(Can.SEE_COSTS) else (Can.SEE_COSTS,)))
    access.must_everywhere(Can.OPERATE)


def must_act_on_any(access: Access) -> None:
    if not figures_offered(access):
        must_act(access)


def figures_offered(access: Access) -> list[str]:
    """What rules of these people may watch."""
    sees = access.can_everywhere(Can.SEE_COSTS)
    return [key for key in FIGURES if may_act(access, key) and (sees or key not in COSTS)]


def figure_faults(access: Access, figure: str) -> dict[str, list[str]]:
    """What is wrong with a figure that exists and that these people may not watch."""
    offered = figures_offered(access)
    if figure not in FIGURES or figure in offered:
        return {}
    if figure in COSTS:
        return {"figure": ["You cannot view costs. Choose another figure."]}
    return {"figure": [f"You may only watch costs. Choose one of {', '.join(offered)}."]}


def _acts_on_costs(access: Access) -> bool:
    return access.can_everywhere(Can.SEE_COSTS) and any(access.can_everywhere(one) for one in ACTS)
