"""Tools that the recipes call: `python -m train_scripts.tools --help`.

Recipes call them often, and importing the plugin takes seconds. So only tools that need torch or fairseq import them.
"""
