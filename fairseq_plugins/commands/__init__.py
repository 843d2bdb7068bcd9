"""What the spec-dec-* commands share: parsing, errors on one line, files, progress, models and data."""
