"""Checkpoints: their settings, weights, safe loading, averages."""
