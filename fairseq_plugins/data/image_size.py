"""How large the images of super-resolution are: what models and data must agree on."""

LOW_SIZE = 8
"""Pixels along a side of the input, in the paper (Stern et al. 2018, section 7.2) and here."""
