"""Health by rule (HLT-6 to HLT-8): raw hardware state, rules, the life cycle of nodes, incidents, stragglers."""
