from django.urls import path

from quotas.views import audit, budgets, own, people, tree

urlpatterns = [
    path("quotas/", tree.tree, name="quotas"),
    path("quotas/new/", tree.root_new, name="quota-root-new"),
    path("quotas/<str:public_id>/", tree.node_page, name="quota"),
    path("quotas/<str:public_id>/edit/", tree.node_edit, name="quota-edit"),
    path("quotas/<str:public_id>/new/", tree.node_new, name="quota-new"),
    path("quotas/<str:public_id>/move/", tree.node_move_page, name="quota-move"),
    path("quotas/<str:public_id>/archive/", tree.node_archive_page, name="quota-archive"),
    path("quotas/<str:public_id>/restore/", tree.node_restore_page, name="quota-restore"),
    path("quotas/<str:public_id>/roles/", people.role_new, name="role-new"),
    path("quotas/<str:public_id>/roles/<int:pk>/end/", people.role_end, name="role-end"),
    path("budgets/", budgets.budget_list, name="budgets"),
    path("budgets/new/", budgets.budget_new, name="budget_new"),
    path("budgets/<slug:public_id>/", budgets.budget_page, name="budget"),
    path("budgets/<slug:public_id>/edit/", budgets.budget_edit, name="budget_edit"),
    path("budgets/<slug:public_id>/exception/", budgets.budget_exception_write, name="budget_exception"),
    path("budgets/<slug:public_id>/remove/", budgets.budget_remove_page, name="budget_remove"),
    path("people/", people.people, name="people"),
    path("people/new/", people.person_new, name="person-new"),
    path("people/<str:public_id>/", people.person, name="person"),
    path("people/<str:public_id>/edit/", people.person_edit, name="person-edit"),
    path("people/<str:public_id>/active/", people.person_active, name="person-active"),
    path("people/<str:public_id>/reset/", people.person_reset, name="person-reset"),
    path("tokens/", own.tokens, name="tokens"),
    path("tokens/new/", own.token_new, name="token-new"),
    path("tokens/<str:public_id>/revoke/", own.token_revoke_page, name="token-revoke"),
    path("audit/", audit.audit, name="audit"),
    path("audit/<int:pk>/", audit.audit_entry, name="audit-entry"),
    path("profile/", own.profile, name="profile"),
]
