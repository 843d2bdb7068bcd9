"""The engine: one draft-and-verify loop, its drafters and its acceptance rules."""
