"""The output protocol: what a turn emits, who gets it, and the one fold over it. Pure: no IO, no clock."""
