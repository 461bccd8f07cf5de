"""Many runs, one table: every combination of some axes, with the monolith beside each."""
