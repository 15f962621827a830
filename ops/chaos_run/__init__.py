"""The chaos run: real processes that are killed and frozen while they work, and a judge who never asks Redis.

Read in this order: `story`, `configuration`, `run`, `strikes`, `stage`, `receiver`, `readers`, `tools`, `records`,
`said`, `judge`, `__main__`.
"""
