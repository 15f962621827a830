"""Signed HTTP posts of turn ends, by the Standard Webhooks specification."""
