"""Decoding: one draft-and-verify loop, its drafters, acceptance rules and backends."""
