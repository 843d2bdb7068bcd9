"""Shared by the spec-dec-* commands: parsing, one-line errors, files, progress, models and data."""
