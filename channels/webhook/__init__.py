"""Signed HTTP posts of events, by the Standard Webhooks specification."""
