"""The web process: turns, endpoints, deliveries and events of others over HTTP, and live readers.

It knows no turn from the inside.
"""
