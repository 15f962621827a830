"""Bytes of a provider's wire format to provider-neutral events, and back. Pure: no IO, no clock."""
