"""A translation server: `spec-dec-serve`, with LibreTranslate's interface and one of its own."""
