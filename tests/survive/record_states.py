"""Records what a store holds of turns in every state, for the release after this one. Run by hand before a release,
when the record version is a new one or a state is:

    .venv/bin/python -m tests.survive.record_states

What belongs here: the server, and the files in `recorded/v<record version>`. A file that is there is left as it is:
what an earlier release wrote cannot be written by a later one. (`v1` was written by the code of commit 2968d03, the
last of that version, through the same scenarios as far as it knew them.)
"""

import asyncio
import tempfile
from functools import partial
from pathlib import Path

import redis

from channels.embedded import EmbeddedServer
from tests.survive.recordings import RECORDED, STATES, file_of, record, write
from tests.survive.stores import real_store
from worker.store.records import RECORD_VERSION


async def main() -> None:
    """Record every state that has no file yet."""
    folder = RECORDED / f"v{RECORD_VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data:
        server = EmbeddedServer(Path(data))
        server.start()
        try:
            with redis.Redis.from_url(server.url) as client:
                for state in STATES:
                    if not file_of(folder, state.name).exists():
                        write(await record(partial(real_store, server.url, client), state), folder)
        finally:
            server.stop()


if __name__ == "__main__":
    asyncio.run(main())
