"""The process of a command: its output, end, signals, memory and imports."""
