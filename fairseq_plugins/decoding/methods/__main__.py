"""Prints the table of methods that the README has."""

from fairseq_plugins.decoding.methods import table

if __name__ == "__main__":
    print(table())
