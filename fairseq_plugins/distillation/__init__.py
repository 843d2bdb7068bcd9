"""Sequence-level knowledge distillation (Kim and Rush 2016): decode with a teacher, in shards; merge."""
