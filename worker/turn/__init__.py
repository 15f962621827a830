"""What a turn does next. Pure: no IO, no clock, no chance."""
