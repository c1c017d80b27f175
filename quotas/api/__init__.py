"""The tree, roles, people, tokens and the audit for programs: the API's side of the pages."""

from ninja import Router

from quotas.api import (
    audit,
    budgets,
    changes,
    cost_exports,
    cost_mails,
    costs,
    fairness,
    ledger,
    people,
    rates,
    replays,
    roles,
    submissions,
    tokens,
    tree,
)

router = Router()
for part in (tree, changes, replays, fairness, budgets, ledger, costs, cost_exports, cost_mails, rates, submissions, roles, people, tokens, audit):
    router.add_router("", part.router)
