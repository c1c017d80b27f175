"""The fleet, the tree and the jobs as the engine reads them: rows of one moment, typed.

What did not change since the last snapshot is the same object again, so the engine recognises it (`engine.state`), and neither it nor the export
(`snapshots.spelling`) does the work for it twice.
"""

from scheduler.snapshots.taking import JobRow, Snapshot, Snapshots

__all__ = ["JobRow", "Snapshot", "Snapshots"]
