"""Inbound routes: an event that another program posts starts a turn."""
