"""Which of a provider's words may be shown: one short line, without our secrets and without the conversation.

What belongs here: what our secrets are, how a line is made readable, when it repeats what we asked. What must not be
known here: HTTP, what an error means, who shows the line.

A provider that echoes is careless, not cunning. Found are words as they are, JSON-escaped, and with other white space
or quotation marks; not found are words that were translated, recoded, or spelled apart.
"""

import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from worker.codecs.messages import AssistantMessage, Request
from worker.codecs.provider_errors import LONGEST_MESSAGE
from worker.codecs.wirejson import well_formed

_LONGEST_QUOTE = 300
_LONGEST_CODE = 64
_WHOLE = 8
_RUN = 20
"""A line repeats the conversation when it holds a whole text of so many bytes of UTF-8, or a run of so many of one: 7
Chinese characters say as much as 20 letters. White space and quotation marks do not count."""
_STEP = _RUN // 2
_MOST_CHARS = 8_000_000
_MOST_CHECKS = 20_000
_EVERYWHERE = 8
_ALONE = 4
"""A secret of so many characters is hidden wherever it stands; a shorter one where it stands as a word of its own; one
shorter than that is no secret."""
_ESCAPED = re.compile(r"\\+u([0-9a-fA-F]{4})")
_LETTER_ESCAPES = re.compile(r"\\+[nrtbf]")
_APART = "\0"
"""No line holds it, so no run spans two of them."""
_MARKS = "\"'`\\"


def secrets_of(api_key: str | None, headers: Mapping[str, str], base_url: str) -> tuple[str, ...]:
    """What no message may repeat: the key, the values of headers and of the base URL's query.

    Of a header also its last word, the token after `Bearer`; of a query also what it says once unescaped. A header or a
    query whose value is short, and a plain word or number, holds no secret (`true`, `2`).
    """
    values = [*headers.values(), *(value.split()[-1] for value in headers.values() if value.strip())]
    try:
        query = urlsplit(base_url).query
    except ValueError:  # no URL at all: the request fails before anything could be said of it
        query = ""
    values += [value for _, value in parse_qsl(query)]
    values += [unquote(pair.partition("=")[2]) for pair in query.split("&")]
    values += [pair.partition("=")[2] for pair in query.split("&")]
    kept = [value for value in values if len(value) >= _EVERYWHERE or not (value.isalpha() or value.isdigit())]
    return tuple(dict.fromkeys(filter(None, (api_key or "", *kept))))


def quotable(said: str, secrets: tuple[str, ...], request: Request) -> str:
    """What of `said` may be shown: one line of at most 300 characters; empty where it repeats the conversation."""
    return quotable_with_code(said, "", secrets, request)[0]


def quotable_with_code(said: str, code: str, secrets: tuple[str, ...], request: Request) -> tuple[str, str]:
    """The same for a message and a code, of which at most 64 characters are shown. Each text is looked at once."""
    lines = [_without_secrets(each, secrets)[: _LONGEST_QUOTE + _RUN] for each in (said, code)]
    if _echoes(_APART.join(lines), request):
        lines = ["" if _echoes(line, request) else line for line in lines]
    return lines[0][:_LONGEST_QUOTE], lines[1][:_LONGEST_CODE]


def _without_secrets(said: str, secrets: tuple[str, ...]) -> str:
    found = sorted({" ".join(secret.split()) for secret in secrets}, key=len, reverse=True)
    line = _one_line(said[:LONGEST_MESSAGE])
    for secret in found:
        if len(secret) >= _EVERYWHERE:
            line = line.replace(secret, "***")
        elif len(secret) >= _ALONE:
            line = re.sub(rf"(?<![\w-]){re.escape(secret)}(?![\w-])", "***", line)
    if len(said) >= LONGEST_MESSAGE and found and len(line) < _LONGEST_QUOTE + len(found[0]):
        return line.rpartition(" ")[0]  # its last word may be the first half of a secret
    return line


def _one_line(said: str) -> str:
    """`said` unescaped and without what is not printed: no line break, no terminal sequence, no hidden mark."""
    line = " ".join(_unescaped(said).replace("\\/", "/").split())
    return "".join(filter(str.isprintable, line))


def _unescaped(text: str) -> str:
    return well_formed(_ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)) if "\\" in text else text


def _echoes(line: str, request: Request) -> bool:
    """Whether `line` repeats the conversation. Each text is looked at once; past 8 million characters it says yes."""
    quote = _plain(line)
    if len(quote) < _WHOLE:
        return False
    steps = {quote[start : start + _STEP] for start in range(len(quote) - _STEP + 1)}
    runs = {quote[start : start + _RUN] for start in range(len(quote) - _RUN + 1)}
    chars, checks = _MOST_CHARS, _MOST_CHECKS
    for text, counts_whole in _texts(request):
        chars -= len(text)
        if chars < 0:
            return True
        plain = _plain(text)
        if counts_whole and _WHOLE <= len(plain) <= len(quote) and plain in quote:
            return True
        for start in range(0, len(plain) - _STEP + 1 if runs else 0, _STEP):  # every run holds one of these steps
            if plain[start : start + _STEP] in steps:
                checks -= 1
                if checks < 0 or any(plain[at : at + _RUN] in runs for at in range(max(0, start - _STEP), start + 1)):
                    return True
    return False


def _texts(request: Request) -> Iterator[tuple[str, bool]]:
    """The texts of the conversation, the newest first, and whether a short one counts when it is repeated whole.

    Names of tools and keys of JSON do not: a message must be able to name the field that it does not like.
    """
    for message in reversed(request.messages):
        yield message.text, True
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls:
                yield call.arguments, True
                yield from ((text, True) for text in _strings(call.arguments_json))
            if message.echo is not None:
                yield _dumped(message.echo.items), False
    yield request.instructions or "", True
    for tool in request.tools:
        yield tool.description, True
        yield _dumped(tool.parameters), False


def _strings(value: object) -> Iterator[str]:
    """Every text in a JSON value that is no key, however deep."""
    left = [value]
    while left:
        found = left.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, dict):
            left += found.values()
        elif isinstance(found, list):
            left += found


def _dumped(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # what cannot be written as JSON was not sent either
        return ""


def _plain(text: str) -> bytes:
    """`text` in UTF-8, without what changes when it is quoted, escaped or laid out anew."""
    if "\\" in text:
        text = _LETTER_ESCAPES.sub("", _unescaped(text))
    for mark in _MARKS:
        text = text.replace(mark, "")
    return "".join(text.split()).encode("utf-8", "replace")
