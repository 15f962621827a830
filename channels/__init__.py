"""The edges: what people and programs see of a turn, and how they reach it.

Channels know the worker, through its doors only; the worker has never heard of channels. Channels do not know each
other.
"""
