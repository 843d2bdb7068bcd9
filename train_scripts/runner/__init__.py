"""Runs the recipes beside this folder, in stages that are skipped where their output exists.

A stage writes under a name that ends in .partial and renames at the end. So what has its final name is complete, and a
recipe that is started again goes on where it was interrupted. Only the standard library is imported: scripts start this
program often.
"""
