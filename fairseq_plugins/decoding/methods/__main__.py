"""Print the table of methods."""

from fairseq_plugins.decoding.methods import table

if __name__ == "__main__":
    print(table())
