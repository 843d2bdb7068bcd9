"""What the scripts beside this folder do in Python: `python -m train_scripts.tools --help`.

Outside the plugin because a recipe calls it often, and importing torch and fairseq takes seconds: only the tools that
need them import them.
"""
