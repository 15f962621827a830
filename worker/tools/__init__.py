"""Tools: what a model may call, where they come from, and running one so that it can neither raise nor hang a turn."""
