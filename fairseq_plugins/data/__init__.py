"""Training blocks for drafters, and patches of images as text."""
