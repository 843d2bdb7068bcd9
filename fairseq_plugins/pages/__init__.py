"""Traces, dependency graphs, reports and figures, as pages, pictures or in the terminal."""
