"""The web process: turns over HTTP, and live readers over server-sent events. Knows no turn from the inside."""
