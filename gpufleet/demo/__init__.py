"""The demo fleet: an invented company, its hardware, a past, and a present that keeps moving.

Nothing outside this package knows that a fleet is a demo: it writes through the same services and tables as a real one. Deleting the package, its
command and its line in beat's timetable takes it out.
"""
