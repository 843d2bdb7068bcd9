"""LibreTranslate with our verifier, for `python -m tests.load ... beside --libretranslate PYTHON`.

Runs with that Python, of an environment that has libretranslate; the arguments are LibreTranslate's. Its sentence
splitter is a model that it downloads from GitHub at first; here each line is a sentence, which takes no time.
"""

from argostranslate.sbd import MiniSBDSentencizer
from libretranslate.main import main

MiniSBDSentencizer.split_sentences = lambda self, text: [text]

if __name__ == "__main__":
    main()
