"""Run the recipes of train_scripts/ in stages; a stage whose output exists is skipped.

A stage writes under a name that ends in .partial and renames its output at the end. A file with its final name is
therefore complete, and a recipe that is started again resumes at the first unfinished stage. Only the standard library
is imported, because scripts start this program often.
"""
