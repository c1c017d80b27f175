"""Events of jobs, and where notifications may go."""
