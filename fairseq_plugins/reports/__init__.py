"""What happened, in tables: see `compare`."""
