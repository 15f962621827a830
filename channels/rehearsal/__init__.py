"""The stand-in provider: a real HTTP server that answers by script, well or badly, and writes down what it did.

Read in this order: `script`, `steps`, `performance`, `wire` and `wires`, `server`, `transcript`.
"""
