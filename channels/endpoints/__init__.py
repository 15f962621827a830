"""Endpoints: who gets which events, where they are, what they are signed with."""
