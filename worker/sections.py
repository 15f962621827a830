"""The sections of the settings about whom to ask and with what: providers, tools, conversations, agents.

What belongs here: their fields with unit, default, bounds and meaning. What must not be known here: the checks between
sections (`worker.settings`), where values come from (`worker.sources`).
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

from worker.fields import BaseUrl, EndpointUrl, ExpandedPath, Headers, Name, Section, amount, filled_from_file

DEFAULT_PROVIDER = "main"

ToolChoice = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$|^mcp:[a-z][a-z0-9_-]*(/[^/\s]+)?$")
]
"""A tool by its name; `mcp:SERVER` stands for all tools of an MCP server, `mcp:SERVER/TOOL` for one of them."""

OfferedName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
"""The name under which a tool is offered to a model."""


VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""The name of an environment variable."""


class StreamLimitSettings(Section):
    """What one answer of a provider may grow to. What passes a limit ends the call with that limit's own error."""

    line_bytes: int = amount(4 * 1024 * 1024, 1024, 1024 * 1024 * 1024, "bytes", "Longest line of an event stream.")
    event_bytes: int = amount(8 * 1024 * 1024, 1024, 1024 * 1024 * 1024, "bytes", "Longest event of an event stream.")
    stream_bytes: int = amount(
        256 * 1024 * 1024, 1024, 64 * 1024 * 1024 * 1024, "bytes", "Longest event stream as a whole."
    )
    index: int = amount(1023, 0, 100_000, "none", "Highest index of a choice, an item, a part or a tool call.")
    text_chars: int = amount(
        16 * 1024 * 1024, 1, 1024 * 1024 * 1024, "characters", "Longest answer: text, reasoning and refusal together."
    )
    argument_chars: int = amount(
        4 * 1024 * 1024, 1, 1024 * 1024 * 1024, "characters", "Longest arguments: those of all tool calls together."
    )
    tool_calls: int = amount(128, 1, 100_000, "tool calls", "Most tool calls of one answer.")


class ProviderSettings(Section):
    """A server that speaks to a model, and how long it may be silent."""

    wire: Literal["chat", "responses", "anthropic"] = Field(
        default="chat",
        description="Wire format: OpenAI's Chat Completions, OpenAI's Responses, or Anthropic's Messages.",
    )
    profile: Literal["compat", "strict"] = Field(
        default="compat",
        description="compat repairs known deviations of real servers; strict takes only what is documented.",
    )
    limits: StreamLimitSettings = Field(default=StreamLimitSettings(), description="Limits of one answer.")
    base_url: BaseUrl = Field(description="Address before the wire format's path, usually ending in /v1.")
    api_key: SecretStr | None = Field(default=None, description="Key, sent as the wire format has it. Not set: none.")
    api_key_file: ExpandedPath | None = Field(default=None, description="File that holds api_key instead.")
    model: str | None = Field(default=None, min_length=1, description="Model of the agents that name none.")
    headers: Headers = Field(default={}, description="Further request headers.")
    extra_body: dict[str, object] = Field(default={}, description="Merged over each request's JSON body, key by key.")
    omit_body: tuple[str, ...] = Field(
        default=(), description="Keys left out of each request's JSON body, for servers that refuse them."
    )
    connect_timeout_s: float = amount(10, 0.1, 300, "seconds", "Longest wait for a connection.")
    prefill_timeout_s: float = amount(
        1800, 0.1, 86400, "seconds", "Longest silence before an attempt's first content; keepalives break it."
    )
    first_token_timeout_s: float = amount(
        600, 0.1, 86400, "seconds", "Longest silence once content has come; keepalives break it."
    )
    no_progress_timeout_s: float = amount(
        1200, 0.1, 86400, "seconds", "Longest wait between two pieces of content, whatever keepalives come."
    )
    stall_timeout_s: float = amount(
        45, 0, 86400, "seconds", "Shorter wait between two pieces of content; not on the last attempt. 0: off."
    )
    reasoning_timeout_s: float = amount(
        1800, 0, 86400, "seconds", "Longest reasoning before the first text or tool call of an attempt. 0: off."
    )
    context_tokens: int | None = amount(
        None,
        256,
        100_000_000,
        "tokens",
        "What the model can hold. Not set: compaction waits for an overflow.",
    )
    fallback: Name | None = Field(
        default=None,
        description="Name of the [providers.NAME] that is asked, from a call's second attempt on.",
    )
    finish_grace_s: float = amount(5, 0, 60, "seconds", "Longest wait for usage after the finish reason.")
    transport_retries: int = amount(
        3, 0, 20, "retries", "Retries of a request that got no stream: no connection, 408, 429, 5xx. 0: off."
    )
    transport_backoff_s: float = amount(1, 0.01, 60, "seconds", "Wait before the first such retry; it doubles.")
    transport_backoff_max_s: float = amount(30, 0.01, 3600, "seconds", "Longest such wait.")

    @model_validator(mode="before")
    @classmethod
    def _read_key(cls, values: object) -> object:
        return filled_from_file(values, "api_key")

    @model_validator(mode="after")
    def _waits_fit(self) -> Self:
        for shorter, longer, why in (
            ("first_token_timeout_s", "prefill_timeout_s", "a stream that has begun gets no more time than before it"),
            ("first_token_timeout_s", "no_progress_timeout_s", "else it never fires"),
            ("transport_backoff_s", "transport_backoff_max_s", "the first wait is the shortest"),
        ):
            low, high = getattr(self, shorter), getattr(self, longer)
            if low > high:
                raise ValueError(f"{shorter} ({low:g}) must not exceed {longer} ({high:g}): {why}")
        if self.stall_timeout_s >= self.no_progress_timeout_s:
            raise ValueError(
                f"stall_timeout_s ({self.stall_timeout_s:g}) must be below no_progress_timeout_s "
                f"({self.no_progress_timeout_s:g}), else it never fires; 0 turns it off"
            )
        return self

    @property
    def longest_silence_s(self) -> float:
        """How long one attempt may last without a single piece of content."""
        return max(self.prefill_timeout_s, self.no_progress_timeout_s)


def ring_of(name: str, providers: Mapping[str, ProviderSettings]) -> tuple[str, ...]:
    """Whom a turn may ask that is `name`'s: it, then its fallback, and so on as long as new ones come.

    Behind the last one comes the first again.
    """
    names = [name]
    while (following := providers[names[-1]].fallback) is not None and following not in names:
        names.append(following)
    return tuple(names)


class ToolSettings(Section):
    """What an installation decides about one tool, over what the tool says of itself."""

    approval: Literal["ask", "never"] | None = Field(
        default=None, description="ask: runs only once a person has approved. Not set: what the tool says of itself."
    )
    timeout_s: float | None = amount(
        None, 0.1, 86400, "seconds", "Longest silence of the tool. Not set: turns.tool_timeout_s."
    )
    retry_safe: bool | None = Field(
        default=None,
        description="It may run again when a process vanished while it ran. Not set: what the tool says of itself.",
    )


class McpSettings(Section):
    """An MCP server whose tools agents may offer: a program to start, or a URL."""

    command: tuple[str, ...] = Field(default=(), description="Program and arguments of a server on standard input.")
    env: dict[VariableName, SecretStr] = Field(
        default={},
        description="Its environment, beside PATH and HOME. As a variable of ours: JSON, to keep the case of names.",
    )
    url: EndpointUrl | None = Field(
        default=None,
        repr=False,
        description="Address of a server over streamable HTTP.",
        json_schema_extra={"shown": "host"},
    )
    headers: Headers = Field(default={}, description="Further request headers.")
    approval: Literal["ask", "never"] = Field(
        default="never", description="ask: each of its tools runs only once a person has approved."
    )
    connect_timeout_s: float = amount(10, 0.1, 300, "seconds", "Longest wait for the server to be ready.")

    @model_validator(mode="before")
    @classmethod
    def _command_is_a_list(cls, values: object) -> object:
        command = values.get("command") if isinstance(values, dict) else None
        if isinstance(command, str):  # not shown: arguments may be secrets
            fix = 'the program and then each argument, as in ["program", "--option"]'
            raise ValueError(f"command must be a list: {fix}")  # noqa: TRY004 - pydantic tells of values alone
        if isinstance(command, list | tuple) and command and not command[0]:
            raise ValueError("the first entry of command is empty: it must name a program")
        return values

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("set either command (a program to start) or url (streamable HTTP), not both")
        if self.url and self.env:
            raise ValueError("env belongs to command; remove it, or use headers")
        if self.command and self.headers:
            raise ValueError("headers belong to url; remove them, or use env")
        return self


class CompactionSettings(Section):
    """When the conversation is made shorter for the model. What people have read never changes."""

    strategy: str = Field(
        default="default",
        description="default, off, or the name of an entry point in the group lastword.compaction.",
    )
    threshold: float = amount(
        0.75, 0.1, 1, "share", "Share of providers.NAME.context_tokens from which on the next call is made shorter."
    )
    timeout_s: float = amount(180, 1, 86400, "seconds", "Longest wait for a summary; at most half of the turn's rest.")
    keep_tool_results: int = amount(3, 0, 1000, "results", "Latest tool results that are kept as they are.")
    summarise: bool = Field(
        default=True, description="When dropping old tool results is not enough, let the model sum the rest up."
    )


class ApprovalSettings(Section):
    """People who decide whether a tool may run."""

    expire_s: float = amount(86400, 1, 2_592_000, "seconds", "After this time nobody can approve any more: refused.")


class ProviderHealthSettings(Section):
    """When all processes leave a provider alone for a while because it keeps dying; needs another one to ask."""

    deaths: int = amount(5, 0, 10_000, "deaths", "Dead attempts within window_s after which it is skipped. 0: never.")
    window_s: float = amount(60, 1, 3600, "seconds", "Time in which deaths are counted.")
    skip_s: float = amount(60, 1, 86400, "seconds", "How long it is skipped.")


class MetricsSettings(Section):
    """How a process tells that it lives, and its figures."""

    report_s: float = amount(
        5, 0.2, 60, "seconds", "Time between two reports of a process; one that misses three is taken for gone."
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="Address of the port below.")
    port: int = amount(
        0,
        0,
        65535,
        "none",
        "Port on which a turns or delivery process answers /livez, /readyz and /metrics itself; each process needs "
        "one of its own. 0: none.",
    )


class AgentSettings(Section):
    """Who answers: instructions, model and tools."""

    instructions: str | None = Field(default=None, description="What the model is told before every turn.")
    instructions_file: ExpandedPath | None = Field(default=None, description="File that holds instructions instead.")
    provider: Name = Field(DEFAULT_PROVIDER, description="Name of the [providers.NAME] to ask.")
    model: str | None = Field(default=None, min_length=1, description="Model. Not set: the provider's.")
    max_tokens: int | None = amount(
        None,
        1,
        10_000_000,
        "tokens",
        "Longest answer of one call. Not set: the server's own limit; wire anthropic: 4096.",
    )
    temperature: float | None = amount(None, 0, 5, "none", "Sampling temperature. Not set: the server's own.")
    extra_body: dict[str, object] = Field(
        default={}, description="Merged over the JSON body of requests to `provider`, over its own, key by key."
    )
    headers: Headers = Field(
        default={}, description="Further headers of requests to `provider`, over those that it has itself."
    )
    tools: tuple[ToolChoice, ...] = Field(
        default=(), description="Tools that the model is offered: names, mcp:SERVER for all of an MCP server."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_instructions(cls, values: object) -> object:
        return filled_from_file(values, "instructions")
