"""The corpus of the demo: sentences in English and German, generated from the Unicode CLDR."""
