"""What a run leaves behind: statistics, traces, the profile."""
