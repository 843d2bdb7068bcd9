"""Image size of super-resolution, shared by models and data."""

LOW_SIZE = 8
"""Pixels along a side of the input (Stern et al. 2018, section 7.2)."""
