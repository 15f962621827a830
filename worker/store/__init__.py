"""Redis, and nothing but: the turn's text, journal, lease, inbox and output log."""
