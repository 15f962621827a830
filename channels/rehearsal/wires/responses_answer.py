"""One answer as OpenAI's Responses stream it.

What belongs here: events. What must not be known here: scripts, HTTP, time, requests.
"""

from typing import Any

from channels.rehearsal.signatures import signature_of
from channels.rehearsal.wire import JsonObject, comment, framed, token_count

_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
_WHOLE = frozenset({"stop", "tool_calls", "completed"})
_TRANSLATED = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
)


class ResponsesAnswer:
    """The events of one answer. `seals_reasoning`: its reasoning can be sent back."""

    is_whole_at_finish = True

    def __init__(self, number: int, model: str, *, seals_reasoning: bool) -> None:
        self.usage: JsonObject | None = None
        self._number = number
        self._seals_reasoning = seals_reasoning
        self._response: JsonObject = {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": 0,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": model,
            "output": [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None,
        }
        self._events = 0
        self._item: JsonObject | None = None
        self._written = ""

    def text(self, piece: str) -> bytes:
        """A piece of the answer."""
        before = self._message()
        self._written += piece
        return before + self._of_part("output_text.delta", delta=piece, logprobs=[])

    def reasoning(self, piece: str) -> bytes:
        """A piece of the model's thinking."""
        before = self._thinking()
        self._written += piece
        return before + self._of_summary("reasoning_summary_text.delta", delta=piece)

    def open_tool(self, call_id: str, name: str) -> bytes:
        """The head of a tool call."""
        call = {"status": "in_progress", "arguments": "", "call_id": call_id, "name": name}
        return self._started() + self._close("completed") + self._open("function_call", "fc", call)

    def arguments(self, piece: str) -> bytes:
        """A piece of the arguments of the tool call that is open."""
        self._written += piece
        return self._of_item("function_call_arguments.delta", delta=piece)

    def close_tool(self) -> bytes:
        """The tool call is whole."""
        return self._close("completed")

    def keepalive(self, words: str | None) -> bytes:
        """A comment."""
        return comment("keep-alive" if words is None else words)

    def error(self, error: JsonObject, event: str | None) -> bytes:
        """An error event; the end of a failed response; or the bare object under another event name."""
        code = error.get("code") or error.get("type")
        if event is None:
            said = {**error, "code": code, "param": error.get("param")}
            return self._event("error", **{key: value for key, value in said.items() if key != "type"})
        if event != "response.failed":
            return framed(event, error)
        failed = {"code": code, "message": error.get("message")}
        return self._started() + self._close("incomplete") + self._end("failed", error=failed)

    def finish(self, reason: str, usage: JsonObject) -> bytes:
        """The end of the response with its usage."""
        self.usage = spoken_usage(usage)
        if reason in _WHOLE:
            return self._started() + self._close("completed") + self._end("completed", usage=self.usage)
        details = {"reason": _CUT.get(reason, reason)}
        before = self._started() + self._close("incomplete")
        return before + self._end("incomplete", usage=self.usage, incomplete_details=details)

    def report_usage(self, usage: JsonObject) -> bytes:
        """Nothing: it came with the end of the response."""
        del usage
        return b""

    def end(self) -> bytes:
        """Nothing: the end of the response is the end mark."""
        return b""

    def _started(self) -> bytes:
        if self._events:
            return b""
        created = self._event("response.created", response=self._response)
        return created + self._event("response.in_progress", response=self._response)

    def _message(self) -> bytes:
        if self._kind == "message":
            return b""
        before = self._started() + self._close("completed")
        item = self._open("message", "msg", {"status": "in_progress", "role": "assistant", "content": []})
        return before + item + self._of_part("content_part.added", part=_text_part(""))

    def _thinking(self) -> bytes:
        if self._kind == "reasoning":
            return b""
        before = self._started() + self._close("completed")
        item = self._open("reasoning", "rs", {"summary": []})
        return before + item + self._of_summary("reasoning_summary_part.added", part=_summary_part(""))

    @property
    def _kind(self) -> str | None:
        return None if self._item is None else self._item["type"]

    def _open(self, kind: str, prefix: str, fields: JsonObject) -> bytes:
        number = len(self._response["output"])
        self._item = {"id": f"{prefix}_{self._number}_{number}", "type": kind, **fields}
        self._written = ""
        return self._event("response.output_item.added", output_index=number, item=self._item)

    def _close(self, status: str) -> bytes:
        """The events that end the open item, if there is one."""
        item = self._item
        if item is None:
            return b""
        text = self._written
        if item["type"] == "message":
            part = _text_part(text)
            done = self._of_part("output_text.done", text=text, logprobs=[])
            done += self._of_part("content_part.done", part=part)
            whole = {**item, "status": status, "content": [part]}
        elif item["type"] == "reasoning":
            done = self._of_summary("reasoning_summary_text.done", text=text)
            done += self._of_summary("reasoning_summary_part.done", part=_summary_part(text))
            sealed = {"encrypted_content": signature_of(text)} if self._seals_reasoning else {}
            whole = {**item, "summary": [_summary_part(text)], **sealed}
        else:
            done = self._of_item("function_call_arguments.done", arguments=text, name=item["name"])
            whole = {**item, "status": status, "arguments": text}
        done += self._event("response.output_item.done", output_index=len(self._response["output"]), item=whole)
        self._response["output"].append(whole)
        self._item = None
        return done

    def _end(self, status: str, **fields: Any) -> bytes:
        return self._event(f"response.{status}", response={**self._response, "status": status, **fields})

    def _of_item(self, event: str, **fields: Any) -> bytes:
        assert self._item is not None
        place = {"item_id": self._item["id"], "output_index": len(self._response["output"])}
        return self._event(f"response.{event}", **place, **fields)

    def _of_part(self, event: str, **fields: Any) -> bytes:
        return self._of_item(event, content_index=0, **fields)

    def _of_summary(self, event: str, **fields: Any) -> bytes:
        return self._of_item(event, summary_index=0, **fields)

    def _event(self, event: str, **fields: Any) -> bytes:
        self._events += 1
        return framed(event, {"type": event, "sequence_number": self._events - 1, **fields})


def spoken_usage(usage: JsonObject) -> JsonObject:
    """Usage in this wire format's words. Other keys stay as they are."""
    prompt, completion = token_count(usage, "prompt_tokens"), token_count(usage, "completion_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": token_count(usage, "prompt_tokens_details", "cached_tokens"),
            "cache_write_tokens": token_count(usage, "prompt_tokens_details", "cache_write_tokens"),
        },
        "output_tokens": completion,
        "output_tokens_details": {
            "reasoning_tokens": token_count(usage, "completion_tokens_details", "reasoning_tokens")
        },
        "total_tokens": token_count(usage, "total_tokens") or prompt + completion,
        **{key: value for key, value in usage.items() if key not in _TRANSLATED},
    }


def _text_part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _summary_part(text: str) -> JsonObject:
    return {"type": "summary_text", "text": text}
