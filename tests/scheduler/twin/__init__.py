"""The slow and obvious twin of the scheduling engine: it knows the two documents, and shares no line with the engine.

It reads the scenario and the plan as plain JSON, works every rule out the long way, and says in words what a plan got wrong.
"""
