"""Training blocks for drafters, and the generated demo corpus."""
