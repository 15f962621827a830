"""A model small enough to write by hand, for a real llama-server: no weights are trained, the engine is real.

What belongs here: the model's words, the table of what may follow what, and the file that holds them (GGUF, version 3).

Its one block adds nothing, each token is a dimension of its own, and the output matrix is a table of logarithms of
chances: what comes next depends on the last token alone. The last token of the prompt, which the chat template chooses,
says what to do: call a tool (with or without words before), answer, or think and answer. Sampled, it never says the
same thing twice.
"""

import math
import struct
from array import array
from pathlib import Path
from typing import TypeAlias

CALL, SAY, THINK = "<|call|>", "<|say|>", "<|think|>"
_END = "<|im_end|>"
_CONTROL = ("<|none|>", "<|im_start|>", _END, CALL, SAY, THINK)
_MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_WORDS = [
    "harbour",
    "lantern",
    "meadow",
    "cedar",
    "pebble",
    "willow",
    "copper",
    "orchard",
    "thunder",
    "velvet",
    "ribbon",
    "candle",
    "marble",
    "feather",
    "anchor",
    "barley",
    "kettle",
    "hollow",
    "timber",
    "saddle",
    "naïve",
    "京",
    "café",
]
_THOUGHTS = ["perhaps", "however", "although", "unless", "whereas", "likewise", "instead", "meanwhile"]
_LEADS = ["first", "then", "briefly", "now", "asking", "reading"]
# A server drops what is least likely (top_p), so the end of a text must be likelier than any one of its words.
_WORDS_OF_A_TEXT, _WORDS_OF_A_THOUGHT, _WORDS_OF_A_LEAD = 20, 8, 4
_SILENT_CALLS, _FURTHER_CALLS = 0.5, 0.2
_CONTEXT = 16384
_DIMENSIONS, _HEADS, _HEAD = 320, 5, 64
_FORWARD = 64
_NEVER, _BLANK = -30.0, -5.0
_U32, _F32, _BOOL, _TEXT, _LIST, _I32 = 4, 6, 7, 8, 9, 5
_NORMAL, _CONTROL_TOKEN, _USER_DEFINED = 1, 3, 4
_Tensor: TypeAlias = "tuple[str, tuple[int, ...], array[float]]"

CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
You have these tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == "assistant" and message.reasoning_content %}<think>{{ message.reasoning_content }}</think>
{%- endif %}{{ message.content or "" }}
{%- for call in (message.tool_calls or []) %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if tools and messages[-1].role != "tool" %}<|call|>
{%- elif enable_thinking is defined and enable_thinking %}<|think|>
{%- else %}<|say|>{% endif %}{% endif %}"""


def write(path: Path) -> None:
    """Write the model."""
    letters = _byte_letters()
    words = [_spelled(f" {word}", letters) for word in _WORDS]
    thoughts = [_spelled(f" {word}", letters) for word in _THOUGHTS]
    leads = [_spelled(f" {word}", letters) for word in _LEADS]
    tokens = [*_CONTROL, *_MARKS, *letters, *words, *thoughts, *leads]
    kinds = [_CONTROL_TOKEN] * len(_CONTROL) + [_USER_DEFINED] * len(_MARKS)
    kinds += [_NORMAL] * (len(tokens) - len(kinds))
    assert len(set(tokens)) == len(tokens) <= _DIMENSIONS
    space = letters[ord(" ")]
    fields = [
        _field("general.architecture", _TEXT, "llama"),
        _field("llama.context_length", _U32, _CONTEXT),
        _field("llama.embedding_length", _U32, _DIMENSIONS),
        _field("llama.block_count", _U32, 1),
        _field("llama.feed_forward_length", _U32, _FORWARD),
        _field("llama.attention.head_count", _U32, _HEADS),
        _field("llama.attention.head_count_kv", _U32, 1),
        _field("llama.attention.layer_norm_rms_epsilon", _F32, 1e-6),
        _field("llama.rope.dimension_count", _U32, _HEAD),
        _field("llama.vocab_size", _U32, len(tokens)),
        _field("tokenizer.ggml.model", _TEXT, "gpt2"),
        _field("tokenizer.ggml.pre", _TEXT, "gpt-2"),
        _list("tokenizer.ggml.tokens", _TEXT, tokens),
        _list("tokenizer.ggml.token_type", _I32, kinds),
        _list("tokenizer.ggml.merges", _TEXT, [f"{space} {space}"]),
        _field("tokenizer.ggml.bos_token_id", _U32, tokens.index("<|im_start|>")),
        _field("tokenizer.ggml.eos_token_id", _U32, tokens.index(_END)),
        _field("tokenizer.ggml.add_bos_token", _BOOL, 0),
    ]
    path.write_bytes(_file(fields, _tensors(tokens, _chances(letters, words, thoughts, leads))))


def _chances(
    letters: list[str], words: list[str], thoughts: list[str], leads: list[str]
) -> dict[str, dict[str, float]]:
    """What may follow a token, and how likely. Inside a tool call the server's grammar picks from it."""
    small = [letters[code] for code in range(ord("a"), ord("z") + 1)]
    quote, line = letters[ord('"')], letters[ord("\n")]
    told = {word: (1 - 1 / _WORDS_OF_A_TEXT) / len(words) for word in words} | {_END: 1 / _WORDS_OF_A_TEXT}
    first = {word: 1 / len(words) for word in words}
    thought = {word: (1 - 1 / _WORDS_OF_A_THOUGHT) / len(thoughts) for word in thoughts}
    lead = {word: (1 - 1 / _WORDS_OF_A_LEAD) / len(leads) for word in leads}
    written = dict.fromkeys(small, 0.75 / len(small)) | {quote: 0.25}
    return {
        CALL: dict.fromkeys(leads, (1 - _SILENT_CALLS) / len(leads)) | {"<tool_call>": _SILENT_CALLS},
        "<tool_call>": {line: 1},
        "</tool_call>": {_END: 1 - _FURTHER_CALLS, "<tool_call>": _FURTHER_CALLS},
        line: {"</tool_call>": 1},
        SAY: first,
        THINK: {"<think>": 1},
        "<think>": {word: 1 / len(thoughts) for word in thoughts},
        "</think>": first,
        **dict.fromkeys(words, told),
        **dict.fromkeys(leads, lead | {"<tool_call>": 1 / _WORDS_OF_A_LEAD}),
        **dict.fromkeys(thoughts, thought | {"</think>": 1 / _WORDS_OF_A_THOUGHT}),
        quote: dict.fromkeys(small, 1 / len(small)),
        **dict.fromkeys(small, written),
    }


def _tensors(tokens: list[str], chances: dict[str, dict[str, float]]) -> list[_Tensor]:
    """(name, shape with the fastest dimension first, values) of each tensor."""
    length = math.sqrt(_DIMENSIONS)  # a one-hot token of this length passes the norm unchanged
    blanks = {_byte_letters()[ord(blank)] for blank in " \t\n\r"}
    embedding = _zeros(_DIMENSIONS, len(tokens))
    output = _zeros(_DIMENSIONS, len(tokens))
    for place, token in enumerate(tokens):
        embedding[place * _DIMENSIONS + place] = length
        known = chances.get(token)
        for following, name in enumerate(tokens):
            # What the table does not name comes only where a grammar leaves nothing else, and blanks last of all.
            chance = 0.0 if known is None else _NEVER
            if known is not None and name in known:
                chance = math.log(known[name])
            elif name in blanks:
                chance += _BLANK
            output[following * _DIMENSIONS + place] = chance / length
    square, narrow, forward = (_DIMENSIONS, _DIMENSIONS), (_DIMENSIONS, _HEAD), (_DIMENSIONS, _FORWARD)
    ones = array("f", [1.0] * _DIMENSIONS)
    silent = {
        "attn_q": square,
        "attn_k": narrow,
        "attn_v": narrow,
        "attn_output": square,
        "ffn_gate": forward,
        "ffn_up": forward,
        "ffn_down": (_FORWARD, _DIMENSIONS),
    }
    return [
        ("token_embd.weight", (_DIMENSIONS, len(tokens)), embedding),
        *((f"blk.0.{name}.weight", shape, _zeros(*shape)) for name, shape in silent.items()),
        *((f"{name}.weight", (_DIMENSIONS,), ones) for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")),
        ("output.weight", (_DIMENSIONS, len(tokens)), output),
    ]


def _file(fields: list[bytes], tensors: list[_Tensor]) -> bytes:
    infos, data = [], b""
    for name, shape, values in tensors:
        info = _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        infos.append(info + struct.pack("<IQ", 0, len(data)))
        data += _aligned(values.tobytes())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    return _aligned(head + b"".join(fields) + b"".join(infos)) + data


def _field(key: str, kind: int, value: str | float) -> bytes:
    return _text(key) + struct.pack("<I", kind) + _value(kind, value)


def _list(key: str, kind: int, values: list[str] | list[int]) -> bytes:
    head = _text(key) + struct.pack("<IIQ", _LIST, kind, len(values))
    return head + b"".join(_value(kind, value) for value in values)


def _value(kind: int, value: str | float) -> bytes:
    if isinstance(value, str):
        return _text(value)
    return struct.pack({_U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<B"}[kind], value)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _aligned(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 32)


def _zeros(*shape: int) -> "array[float]":
    return array("f", bytes(4 * math.prod(shape)))


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in a vocabulary of this kind: itself, or the next free one from U+0100."""
    shown = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]


def _spelled(word: str, letters: list[str]) -> str:
    return "".join(letters[byte] for byte in word.encode())
