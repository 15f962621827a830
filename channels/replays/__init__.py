"""Bulk replays of dead and held deliveries, kept in Redis: they go on where they were, whoever dies."""
