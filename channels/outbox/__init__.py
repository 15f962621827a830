"""The outbox: every delivery in Redis, shared by all partitions, with what each endpoint lets through."""
