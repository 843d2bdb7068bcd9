"""Write the table of backends in docs/how-it-works.md: `python -m tests.backends_table`."""

from fairseq_plugins.decoding.backends import table
from tests.options_page import write
from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "how-it-works.md"

if __name__ == "__main__":
    write(PAGE, {"backends": table()})
