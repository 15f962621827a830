"""The turn: from a message to a sealed output log.

1. `worker` turns a message into a sealed output log; `channels` turn the log into things people see.
2. Deciding is pure and lives in `codecs`, `turn` and `output`; doing is thin and lives around them.
3. Channels know the worker; the worker has never heard of channels.

Read in this order: `api`, `tasks`, `engine.driver`, `turn.machine`, `codecs.openai_chat`, `store.accumulator`,
`output.buffer`.
"""
