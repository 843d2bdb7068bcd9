"""Traces and dependency graphs as pages for a browser."""
