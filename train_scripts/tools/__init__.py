"""Programs that the recipes call: `python -m train_scripts.tools --help`.

They are outside the plugin because importing it takes seconds and recipes call them often; only tools that need torch
and fairseq import them.
"""
