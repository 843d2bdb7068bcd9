"""What people look at: traces, dependency graphs, reports, figures, pictures."""
