"""What can go wrong in the worker, named by whose fault it is.

    LastwordError
      ConfigurationError      a setting, a file or an argument is wrong: names the field, the value and the fix
      ToolsUnavailable        an MCP server cannot be reached now: what a turn may offer is not known
      LocalProtocolError      our own bug: an event that the state does not allow; nothing was changed
      StoreError              Redis answered something that no script of ours answers
        Fenced                another driver owns the turn: this one changes nothing more and says nothing
        Rewound               the store lost our last steps: drop the state, claim anew, replay the journal
        TurnSealed            the turn has ended; nothing changes any more
        InboxChanged          the messages that a call was to carry wait no more as they did: look again
        TurnCancelled         the turn is to end: claim it anew, and seal it
        StoreFull             Redis is at its maxmemory: nothing was written
        NewerRecord           a newer release wrote it: left to processes of that release
        StoreUnavailable      Redis did not answer in time: what was asked may have been done or not

What belongs here: exception classes that cross a module's border. What must not be known here: any other module.
Deaths of a provider's stream are not exceptions but values: see `worker.turn.events.Died`.
"""


class LastwordError(Exception):
    """Everything that Lastword raises on purpose."""


class ConfigurationError(LastwordError):
    """A setting, a file or an argument is wrong. The message names the field, the value and the fix."""


class ToolsUnavailable(LastwordError):
    """A server that an agent's tools come from cannot be reached. The message names `mcp.NAME` and the fix.

    `retry_after_s`: before that many seconds have passed, asking again only repeats this.
    """

    def __init__(self, message: str, retry_after_s: float = 0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class LocalProtocolError(LastwordError):
    """An event came that the state does not allow. A bug of ours; nothing was changed by it."""


class StoreError(LastwordError):
    """The store refused a step, or answered something that none of our scripts answers."""


class Fenced(StoreError):
    """Another driver owns this turn. The work goes on there."""


class Rewound(StoreError):
    """The store knows fewer steps than were acknowledged (a failover or a lost file tail)."""


class TurnSealed(StoreError):
    """The turn has ended; its text does not change any more."""


class InboxChanged(StoreError):
    """The messages that a call was to carry wait no more as they did. Nothing was recorded."""


class TurnCancelled(StoreError):
    """Someone wants this turn to end: the store takes nothing that would let it go on."""


class NewerRecord(StoreError):
    """What is stored was written by a newer release, and may mean something else there. The message names the fix."""


class StoreFull(StoreError):
    """Redis is at its maxmemory and takes no new work. Nothing was written."""


class StoreUnavailable(StoreError):
    """Redis did not answer in time. What was asked may have been done or not; asking again does no harm."""
