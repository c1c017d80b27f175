"""Time shares of jobs on GPU types, as Gavel (Narayanan et al., OSDI 2020) has them: what is aimed at, how it is solved, and how it is played."""
