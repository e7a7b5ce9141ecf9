"""Prompts from files that people have: found, read row by row, templated once, kept prepared on disk.
It imports `streamrl.config`, `streamrl.models`, `streamrl.observability`, `streamrl.rewards`, `streamrl.system`.
No reward, and nothing that is generated. Only `readers` needs Arrow.
"""
