"""Equal and different requests, from their JSON text to their key (SPEC §6)."""

from __future__ import annotations

from hashlib import sha256
from json import dumps

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache_keys import cache_key, canonical_fields
from policies.catalog import ModelDefaults
from policies.requests.asked import Dialect, EffectiveRequest, Endpoint
from policies.requests.body import decode_body
from policies.requests.completions import CompletionRequest
from policies.requests.dialects import read_request
from policies.requests.long_texts import LONG_CHARACTERS

MODEL = "m"
ALICE = ("user", "org", "user", "alice")
BASES = {
    Endpoint.COMPLETIONS: {"prompt": '"p"', "temperature": "0", "max_tokens": "8"},
    Endpoint.CHAT: {"messages": '[{"role":"user","content":"p"}]', "temperature": "0"},
    Endpoint.EMBEDDINGS: {"input": '"p"'},
    Endpoint.RESPONSES: {"input": '"p"', "temperature": "0", "store": "false"},
}
TEXT, CHAT, VECTOR, RESPONSE = Endpoint.COMPLETIONS, Endpoint.CHAT, Endpoint.EMBEDDINGS, Endpoint.RESPONSES


def effective(
    body: str, endpoint: Endpoint = TEXT, dialect: Dialect = Dialect.OPENAI, path_model: str | None = None
) -> EffectiveRequest:
    asked = read_request(
        endpoint=endpoint,
        dialect=dialect,
        fields=decode_body(body.encode()),
        path_model=path_model,
        api_version="2024-06-01" if dialect is Dialect.AZURE else None,
    )
    return EffectiveRequest(asked.endpoint, asked.fields, asked.view)


def key(body: str, endpoint: Endpoint = TEXT, scope: tuple[str, ...] = ALICE) -> str:
    return cache_key(effective(body, endpoint), MODEL, scope=scope)


def extended(extra: str, endpoint: Endpoint = TEXT) -> str:
    """Return the base body with more members, or with members replaced by ones of the same name."""
    replaced = decode_body(b"{" + extra.encode() + b"}")
    base = [f'"{name}":{text}' for name, text in BASES[endpoint].items() if name not in replaced]
    return "{" + ",".join(['"model":"m"', *base, *([extra] if extra else [])]) + "}"


EQUAL_BODIES = {
    "members in another order": (
        '{"model":"m","prompt":"p","temperature":0}',
        '{"temperature":0,"prompt":"p","model":"m"}',
    ),
    "white space between members": (
        '{"model":"m","prompt":"p","temperature":0}',
        '{ "model" :\t"m",\n\r "prompt": "p" , "temperature":0 }',
    ),
    "an escaped letter and the letter": (
        '{"model":"m","prompt":"cat"}',
        '{"model":"m","prompt":"\\u0063at"}',
    ),
    "an escaped emoji and the emoji": (
        '{"model":"m","prompt":"\U0001f600"}',
        '{"model":"m","prompt":"\\ud83d\\ude00"}',
    ),
    "an escaped slash and the slash": ('{"model":"m","prompt":"a/b"}', '{"model":"m","prompt":"a\\/b"}'),
    "an escaped name and the name": ('{"model":"m","prompt":"p"}', '{"model":"m","\\u0070rompt":"p"}'),
    "nested members in another order": (
        '{"model":"m","prompt":"p","guided":{"a":1,"b":[{"c":1,"d":2}]}}',
        '{"model":"m","prompt":"p","guided":{"b":[{"d":2,"c":1}],"a":1}}',
    ),
}

# endpoint, members of one request, members of the other; each is added to the base body
EQUAL = {
    "temperature 0 and 0.0": (TEXT, '"temperature":0', '"temperature":0.0'),
    "temperature 0 and -0.0": (TEXT, '"temperature":0', '"temperature":-0.0'),
    "temperature 0 and 0e3": (TEXT, '"temperature":0', '"temperature":0e3'),
    "temperature 0.5 and 5e-1": (TEXT, '"temperature":0.5', '"temperature":5e-1'),
    "top_p 1 and 1.0": (TEXT, '"top_p":1', '"top_p":1.0'),
    "seed 7 and 7.0": (TEXT, '"seed":7', '"seed":7.0'),
    "max_tokens 8 and 8.0": (TEXT, '"max_tokens":8', '"max_tokens":8.0'),
    "logprobs 2 and 2.0": (TEXT, '"logprobs":2', '"logprobs":2.0'),
    "n 2 and 2.0": (TEXT, '"n":2', '"n":2.0'),
    "n 1 and absent": (TEXT, '"n":1', ""),
    "n 1.0 and absent": (TEXT, '"n":1.0', ""),
    "n null and absent": (TEXT, '"n":null', ""),
    "best_of 1 and absent": (TEXT, '"best_of":1', ""),
    "best_of as n and absent": (TEXT, '"n":3,"best_of":3', '"n":3'),
    "best_of null and absent": (TEXT, '"best_of":null', ""),
    "echo false and absent": (TEXT, '"echo":false', ""),
    "suffix null and absent": (TEXT, '"suffix":null', ""),
    "presence_penalty 0 and absent": (TEXT, '"presence_penalty":0', ""),
    "frequency_penalty 0.0 and absent": (TEXT, '"frequency_penalty":0.0', ""),
    "stop null and absent": (TEXT, '"stop":null', ""),
    "logit_bias null and absent": (TEXT, '"logit_bias":null', ""),
    "logprobs null and absent": (TEXT, '"logprobs":null', ""),
    "an unknown field null and absent": (TEXT, '"num_ctx":null', ""),
    "logit_bias -100 and -100.0": (TEXT, '"logit_bias":{"5":-100}', '"logit_bias":{"5":-100.0}'),
    "logit_bias in another order": (TEXT, '"logit_bias":{"5":1,"6":2}', '"logit_bias":{"6":2,"5":1}'),
    "logit_bias as pairs and as a map": (TEXT, '"logit_bias":[["5",1]]', '"logit_bias":{"5":1}'),
    "echo as a list of one": (TEXT, '"echo":[true]', '"echo":true'),
    "best_of as a list of one pair": (TEXT, '"best_of":[["best_of",2]]', '"best_of":2'),
    "best_of as an object of one": (TEXT, '"best_of":{"best_of":2.0}', '"best_of":2'),
    "stop as an array of one empty text": (TEXT, '"stop":[""]', '"stop":""'),
    "presence_penalty 0 and -0.0": (TEXT, '"presence_penalty":-0.0', ""),
    "an array of one prompt and the prompt": (TEXT, '"prompt":["p"]', '"prompt":"p"'),
    "an array of one token prompt and the prompt": (TEXT, '"prompt":[[1,2]]', '"prompt":[1,2]'),
    "token ids 1 and 1.0": (TEXT, '"prompt":[1,2]', '"prompt":[1.0,2]'),
    "token ids 1 and 1.0 in several prompts": (TEXT, '"prompt":[[1,2],[3]]', '"prompt":[[1,2.0],[3e0]]'),
    "one token prompt in an array, 1 and 1.0": (TEXT, '"prompt":[[1]]', '"prompt":[1.0]'),
    "stop as an array of one and as a string": (TEXT, '"stop":["x"]', '"stop":"x"'),
    "streamed and not": (TEXT, '"stream":true', '"stream":false'),
    "streamed and absent": (TEXT, '"stream":true', ""),
    "stream options": (TEXT, '"stream":true,"stream_options":{"include_usage":true}', ""),
    "another user": (TEXT, '"user":"alice"', '"user":"bob"'),
    "safety_identifier": (TEXT, '"safety_identifier":"a"', ""),
    "metadata": (TEXT, '"metadata":{"a":"b"}', ""),
    "prompt_cache_key": (TEXT, '"prompt_cache_key":"k"', ""),
    "prompt_cache_retention": (TEXT, '"prompt_cache_retention":"24h"', ""),
    "cache_level 2": (TEXT, '"cache_level":2', ""),
    "cache_level 2.0": (TEXT, '"cache_level":2.0', ""),
    "all that is ignored at once": (
        TEXT,
        '"stream":true,"stream_options":{"include_usage":true},"user":"a","metadata":{},"cache_level":2',
        '"user":"b","prompt_cache_key":"k"',
    ),
    "chat: logprobs false and absent": (CHAT, '"logprobs":false', ""),
    "chat: n 1 and absent": (CHAT, '"n":1', ""),
    "chat: stop as an array of one": (CHAT, '"stop":["x"]', '"stop":"x"'),
    "chat: max_completion_tokens 8 and 8.0": (CHAT, '"max_completion_tokens":8', '"max_completion_tokens":8.0'),
    "chat: store null and absent": (CHAT, '"store":null', ""),
    "chat: temperature 0 and 0.0": (CHAT, '"temperature":0', '"temperature":0.0'),
    "chat: presence_penalty 0.0 and absent": (CHAT, '"presence_penalty":0.0', ""),
    "chat: frequency_penalty 0 and absent": (CHAT, '"frequency_penalty":0', ""),
    "chat: presence_penalty 1 and 1.0": (CHAT, '"presence_penalty":1', '"presence_penalty":1.0'),
    "chat: logit_bias 1 and 1.0": (CHAT, '"logit_bias":{"5":1}', '"logit_bias":{"5":1.0}'),
    "chat: logit_bias null and absent": (CHAT, '"logit_bias":null', ""),
    "chat: logprobs null and absent": (CHAT, '"logprobs":null', ""),
    "chat: top_logprobs 2 and 2.0": (
        CHAT,
        '"logprobs":true,"top_logprobs":2',
        '"logprobs":true,"top_logprobs":2.0',
    ),
    "chat: seed 7 and 7.0": (CHAT, '"seed":7', '"seed":7.0'),
    "chat: tools null and absent": (CHAT, '"tools":null', ""),
    "chat: members of a tool in another order": (
        CHAT,
        '"tools":[{"type":"function","function":{"name":"f"}}]',
        '"tools":[{"function":{"name":"f"},"type":"function"}]',
    ),
    "chat: streamed with its usage and whole": (CHAT, '"stream":true,"stream_options":{"include_usage":true}', ""),
    "chat: another user": (CHAT, '"user":"alice"', '"user":"bob"'),
    "chat: safety_identifier": (CHAT, '"safety_identifier":"a"', ""),
    "chat: metadata": (CHAT, '"metadata":{"a":"b"}', ""),
    "chat: prompt_cache_key": (CHAT, '"prompt_cache_key":"k"', ""),
    "chat: prompt_cache_retention": (CHAT, '"prompt_cache_retention":"24h"', ""),
    "chat: cache_level 2": (CHAT, '"cache_level":2', ""),
    "chat: cache_level 2.0": (CHAT, '"cache_level":2.0', ""),
    "embeddings: an array of one and its text": (VECTOR, '"input":["p"]', '"input":"p"'),
    "embeddings: an array of one token input": (VECTOR, '"input":[[1,2]]', '"input":[1,2]'),
    "embeddings: token ids 1 and 1.0": (VECTOR, '"input":[1,2]', '"input":[1,2.0]'),
    "embeddings: token ids 1 and 1.0 in several inputs": (VECTOR, '"input":[[1],[2]]', '"input":[[1.0],[2]]'),
    "embeddings: dimensions 256 and 256.0": (VECTOR, '"dimensions":256', '"dimensions":256.0'),
    "embeddings: encoding_format null and absent": (VECTOR, '"encoding_format":null', ""),
    "embeddings: another user": (VECTOR, '"user":"a"', ""),
    "embeddings: metadata": (VECTOR, '"metadata":{"a":"b"}', ""),
    "embeddings: cache_level 2": (VECTOR, '"cache_level":2', ""),
    "responses: streamed and whole": (RESPONSE, '"stream":true', ""),
    "responses: stream options": (RESPONSE, '"stream":true,"stream_options":{"include_obfuscation":false}', ""),
    "responses: temperature 0 and 0.0": (RESPONSE, '"temperature":0', '"temperature":0.0'),
    "responses: max_output_tokens 16 and 16.0": (RESPONSE, '"max_output_tokens":16', '"max_output_tokens":16.0'),
    "responses: top_logprobs 2 and 2.0": (RESPONSE, '"top_logprobs":2', '"top_logprobs":2.0'),
    "responses: instructions null and absent": (RESPONSE, '"instructions":null', ""),
    "responses: cache_level 2": (RESPONSE, '"cache_level":2', ""),
}

DIFFERENT = {
    "another prompt": (TEXT, '"prompt":"p"', '"prompt":"q"'),
    "an empty prompt and none": (TEXT, '"prompt":""', '"prompt":null'),
    "the end-of-text marker and no prompt": (TEXT, '"prompt":"<|endoftext|>"', '"prompt":null'),
    "a space at the prompt's end": (TEXT, '"prompt":"p"', '"prompt":"p "'),
    "a space at the prompt's beginning": (TEXT, '"prompt":"p"', '"prompt":" p"'),
    "a line end LF and CRLF": (TEXT, '"prompt":"a\\nb"', '"prompt":"a\\r\\nb"'),
    "another case": (TEXT, '"prompt":"p"', '"prompt":"P"'),
    "NFC and NFD": (TEXT, '"prompt":"\\u00e9"', '"prompt":"e\\u0301"'),
    "a zero-width space": (TEXT, '"prompt":"p"', '"prompt":"p\\u200b"'),
    "the replacement character and another": (TEXT, '"prompt":"\\ufffd"', '"prompt":"\\ufffe"'),
    "a NUL at the end": (TEXT, '"prompt":"p"', '"prompt":"p\\u0000"'),
    "text that looks like tokens": (TEXT, '"prompt":"[1, 2]"', '"prompt":[1,2]'),
    "compact text that looks like tokens": (TEXT, '"prompt":"[1,2]"', '"prompt":[1,2]'),
    "text that looks like an array of texts": (TEXT, '"prompt":"[\\"p\\"]"', '"prompt":["p"]'),
    "one token and its digit": (TEXT, '"prompt":[1]', '"prompt":"1"'),
    "two prompts and one joined": (TEXT, '"prompt":["a","b"]', '"prompt":"ab"'),
    "two prompts split elsewhere": (TEXT, '"prompt":["ab","c"]', '"prompt":["a","bc"]'),
    "two prompts in another order": (TEXT, '"prompt":["a","b"]', '"prompt":["b","a"]'),
    "the same prompt once and twice": (TEXT, '"prompt":["a","a"]', '"prompt":"a"'),
    "two token prompts and one joined": (TEXT, '"prompt":[[1],[2]]', '"prompt":[[1,2]]'),
    "n 2 and absent": (TEXT, '"n":2', ""),
    "best_of 2 and absent": (TEXT, '"best_of":2', ""),
    "best_of above n": (TEXT, '"n":2,"best_of":3', '"n":2'),
    "n 2 and best_of 2": (TEXT, '"n":2', '"best_of":2'),
    "suffix empty and absent": (TEXT, '"suffix":""', ""),
    "suffix given": (TEXT, '"suffix":" end"', ""),
    "echo true and absent": (TEXT, '"echo":true', ""),
    "logprobs 0 and absent": (TEXT, '"logprobs":0', ""),
    "logprobs 1 and 2": (TEXT, '"logprobs":1', '"logprobs":2'),
    "stop given and absent": (TEXT, '"stop":["."]', ""),
    "stop empty and absent": (TEXT, '"stop":[]', ""),
    "stop an empty string and absent": (TEXT, '"stop":""', ""),
    "stops in another order": (TEXT, '"stop":["a","b"]', '"stop":["b","a"]'),
    "two stops and one joined": (TEXT, '"stop":["a","b"]', '"stop":"ab"'),
    "presence and frequency swapped": (TEXT, '"presence_penalty":0.5', '"frequency_penalty":0.5'),
    "presence_penalty 0.5 and absent": (TEXT, '"presence_penalty":0.5', ""),
    "frequency_penalty -0.5 and 0.5": (TEXT, '"frequency_penalty":-0.5', '"frequency_penalty":0.5'),
    "logit_bias given": (TEXT, '"logit_bias":{"50256":-100}', ""),
    "logit_bias empty and absent": (TEXT, '"logit_bias":{}', ""),
    "logit_bias of another token": (TEXT, '"logit_bias":{"5":1}', '"logit_bias":{"6":1}'),
    "temperature 0 and 1e-7": (TEXT, '"temperature":0', '"temperature":1e-7'),
    "temperature 0 and absent": (TEXT, '"temperature":0', '"temperature":null'),
    "temperature 1 and absent, for models differ": (TEXT, '"temperature":1', '"temperature":null'),
    "top_p 1 and absent, for models differ": (TEXT, '"top_p":1', ""),
    "top_p 0.5 and absent": (TEXT, '"top_p":0.5', ""),
    "max_tokens 16 and absent, for models differ": (TEXT, '"max_tokens":16', '"max_tokens":null'),
    "max_tokens 0 and absent": (TEXT, '"max_tokens":0', '"max_tokens":null'),
    "max_tokens 8 and 9": (TEXT, '"max_tokens":8', '"max_tokens":9'),
    "seed 0 and absent": (TEXT, '"seed":0', ""),
    "seed 1 and -1": (TEXT, '"seed":1', '"seed":-1'),
    "temperature 0 and temperature 0 with a seed": (TEXT, '"seed":0,"temperature":0', '"temperature":0'),
    "echo true and an echo that is unknown elsewhere": (TEXT, '"echo":true', '"Echo":true'),
    "prompt_cache_options, which no rule leaves out": (TEXT, '"prompt_cache_options":{}', ""),
    "seeds around 2^53": (TEXT, '"seed":9007199254740992', '"seed":9007199254740993'),
    "seeds at the end of 64 bits": (TEXT, '"seed":9223372036854775807', '"seed":9223372036854775806'),
    "completion_config": (TEXT, '"completion_config":"a"', ""),
    "an unknown field": (TEXT, '"num_ctx":8192', ""),
    "another name of an unknown field": (TEXT, '"num_ctx":1', '"num_ctz":1'),
    "an unknown field 0 and absent": (TEXT, '"x":0', ""),
    "an unknown field false and absent": (TEXT, '"x":false', ""),
    "an unknown field empty and absent": (TEXT, '"x":""', ""),
    "an unknown field 1 and 1.0": (TEXT, '"x":1', '"x":1.0'),
    "an unknown field 0.0 and -0.0": (TEXT, '"x":0.0', '"x":-0.0'),
    "an unknown field true and 1": (TEXT, '"x":true', '"x":1'),
    "an unknown field false and 0": (TEXT, '"x":false', '"x":0'),
    "an unknown field 1 and its digit": (TEXT, '"x":1', '"x":"1"'),
    "an unknown field of one and its element": (TEXT, '"x":["a"]', '"x":"a"'),
    "an unknown field's nested null": (TEXT, '"x":{"a":null}', '"x":{}'),
    "an unknown field's array order": (TEXT, '"x":[1,2]', '"x":[2,1]'),
    "an unknown field around 2^53": (TEXT, '"x":9007199254740992', '"x":9007199254740993'),
    "an unknown field 2^53 as an integer and as a real": (TEXT, '"x":9007199254740992', '"x":9007199254740992.0'),
    "an unknown field's text in NFC and in NFD": (TEXT, '"x":"\\u00e9"', '"x":"e\\u0301"'),
    "an unknown field in another case": (TEXT, '"x":1', '"X":1'),
    "an unknown field and the same inside another": (TEXT, '"x":1', '"y":{"x":1}'),
    "an unknown field's member null and a list of null": (TEXT, '"x":[null]', '"x":[]'),
    "an ignored member inside an unknown field": (TEXT, '"x":{"user":"a"}', '"x":{"user":"b"}'),
    "an unknown field's nested 1 and 1.0": (TEXT, '"x":{"a":[1]}', '"x":{"a":[1.0]}'),
    "unknown integers beyond 64 bits": (TEXT, '"x":18446744073709551616', '"x":18446744073709551617'),
    "a field of another endpoint": (TEXT, '"top_logprobs":1', '"top_logprobs":1.0'),
    "guided_json": (TEXT, '"guided_json":{"type":"object"}', ""),
    "a member that spells others": (TEXT, '"x":"1,\\"y\\":2"', '"x":"1","y":2'),
    "chat: other content": (CHAT, '"messages":[{"role":"user","content":"q"}]', ""),
    "chat: another role": (CHAT, '"messages":[{"role":"system","content":"p"}]', ""),
    "chat: a message split in two": (
        CHAT,
        '"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]',
        '"messages":[{"role":"user","content":"ab"}]',
    ),
    "chat: tools": (CHAT, '"tools":[{"type":"function","function":{"name":"f"}}]', ""),
    "chat: another tool": (
        CHAT,
        '"tools":[{"type":"function","function":{"name":"f"}}]',
        '"tools":[{"type":"function","function":{"name":"g"}}]',
    ),
    "chat: tools empty and absent": (CHAT, '"tools":[]', ""),
    "chat: tools in another order": (
        CHAT,
        '"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]',
        '"tools":[{"type":"function","function":{"name":"g"}},{"type":"function","function":{"name":"f"}}]',
    ),
    "chat: a tool's schema with 1 and 1.0": (
        CHAT,
        '"tools":[{"type":"function","function":{"name":"f","parameters":{"minimum":1}}}]',
        '"tools":[{"type":"function","function":{"name":"f","parameters":{"minimum":1.0}}}]',
    ),
    "chat: tools and functions": (CHAT, '"tools":[{"name":"f"}]', '"functions":[{"name":"f"}]'),
    "chat: a message's text and the same in a part": (
        CHAT,
        '"messages":[{"role":"user","content":"p"}]',
        '"messages":[{"role":"user","content":[{"type":"text","text":"p"}]}]',
    ),
    "chat: a message's name": (CHAT, '"messages":[{"role":"user","content":"p","name":"n"}]', ""),
    "chat: a message's member null and absent": (CHAT, '"messages":[{"role":"user","content":"p","name":null}]', ""),
    "chat: messages in another order": (
        CHAT,
        '"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]',
        '"messages":[{"role":"user","content":"b"},{"role":"user","content":"a"}]',
    ),
    "chat: content in NFC and in NFD": (
        CHAT,
        '"messages":[{"role":"user","content":"\\u00e9"}]',
        '"messages":[{"role":"user","content":"e\\u0301"}]',
    ),
    "chat: an array of texts in stop's array and those texts": (CHAT, '"stop":[["a","b"]]', '"stop":["a","b"]'),
    "chat: an empty array in stop's array and an empty one": (CHAT, '"stop":[[]]', '"stop":[]'),
    "chat: stop given": (CHAT, '"stop":"x"', ""),
    "chat: n 2": (CHAT, '"n":2', ""),
    "chat: max_completion_tokens given": (CHAT, '"max_completion_tokens":8', ""),
    "chat: max_tokens 8 and 9": (CHAT, '"max_tokens":8', '"max_tokens":9'),
    "chat: seed 0 and absent": (CHAT, '"seed":0', ""),
    "chat: presence_penalty false and absent": (CHAT, '"presence_penalty":false', ""),
    "chat: presence_penalty 0 as a text": (CHAT, '"presence_penalty":"0"', ""),
    "chat: logit_bias empty and absent": (CHAT, '"logit_bias":{}', ""),
    "chat: top_logprobs 0 and absent": (CHAT, '"logprobs":true,"top_logprobs":0', '"logprobs":true'),
    "chat: response_format text and absent": (CHAT, '"response_format":{"type":"text"}', ""),
    "chat: parallel_tool_calls true and absent": (CHAT, '"parallel_tool_calls":true', ""),
    "chat: service_tier auto and absent": (CHAT, '"service_tier":"auto"', ""),
    "chat: prompt_cache_options": (CHAT, '"prompt_cache_options":{"mode":"explicit"}', ""),
    "chat: an unknown cache_level": (CHAT, '"cache_level":3', ""),
    "chat: top_p 1 and absent, for models differ": (CHAT, '"top_p":1', ""),
    "chat: temperature 1 and absent, for models differ": (CHAT, '"temperature":1', '"temperature":null'),
    "chat: response_format": (CHAT, '"response_format":{"type":"json_object"}', ""),
    "chat: tool_choice": (CHAT, '"tool_choice":"none"', ""),
    "chat: reasoning_effort": (CHAT, '"reasoning_effort":"high"', ""),
    "chat: logprobs true": (CHAT, '"logprobs":true', ""),
    "chat: top_logprobs": (CHAT, '"logprobs":true,"top_logprobs":2', '"logprobs":true'),
    "chat: the two names of the ceiling": (CHAT, '"max_tokens":8', '"max_completion_tokens":8'),
    "chat: an unknown best_of 1": (CHAT, '"best_of":1', ""),
    "chat: store false and absent": (CHAT, '"store":false', ""),
    "embeddings: dimensions": (VECTOR, '"dimensions":256', ""),
    "embeddings: base64 and floats": (VECTOR, '"encoding_format":"base64"', '"encoding_format":"float"'),
    "embeddings: base64 and absent": (VECTOR, '"encoding_format":"base64"', ""),
    "embeddings: float and absent": (VECTOR, '"encoding_format":"float"', ""),
    "embeddings: a space at the end": (VECTOR, '"input":"p "', ""),
    "embeddings: text that looks like tokens": (VECTOR, '"input":"[1, 2]"', '"input":[1,2]'),
    "embeddings: two inputs and one joined": (VECTOR, '"input":["a","b"]', '"input":["ab"]'),
    "embeddings: two token inputs and one joined": (VECTOR, '"input":[[1],[2]]', '"input":[1,2]'),
    "embeddings: the same input once and twice": (VECTOR, '"input":["p","p"]', ""),
    "embeddings: in NFC and in NFD": (VECTOR, '"input":"\\u00e9"', '"input":"e\\u0301"'),
    "embeddings: an unknown field": (VECTOR, '"truncate":"END"', ""),
    "embeddings: an unknown temperature 0": (VECTOR, '"temperature":0', ""),
    "embeddings: inputs in another order": (VECTOR, '"input":["a","b"]', '"input":["b","a"]'),
    "embeddings: an unknown n 1": (VECTOR, '"n":1', ""),
    "responses: a text and the message that it stands for": (
        RESPONSE,
        '"input":"p"',
        '"input":[{"role":"user","content":"p"}]',
    ),
    "responses: instructions": (RESPONSE, '"instructions":"be brief"', ""),
    "responses: instructions empty and absent": (RESPONSE, '"instructions":""', ""),
    "responses: max_output_tokens 16 and absent": (RESPONSE, '"max_output_tokens":16', ""),
    "responses: the ceiling under another endpoint's name": (RESPONSE, '"max_output_tokens":16', '"max_tokens":16'),
    "responses: reasoning": (RESPONSE, '"reasoning":{"effort":"low"}', ""),
    "responses: text": (RESPONSE, '"text":{"format":{"type":"text"}}', ""),
    "responses: tools": (RESPONSE, '"tools":[{"type":"function","name":"f"}]', ""),
    "responses: include": (RESPONSE, '"include":["reasoning.encrypted_content"]', ""),
    "responses: truncation": (RESPONSE, '"truncation":"auto"', ""),
    "responses: an unknown n 1": (RESPONSE, '"n":1', ""),
    "responses: an unknown field": (RESPONSE, '"x":1', ""),
    "responses: the user, whom an answer names": (RESPONSE, '"user":"alice"', '"user":"bob"'),
    "responses: metadata, which an answer repeats": (RESPONSE, '"metadata":{"a":"b"}', ""),
    "responses: prompt_cache_key, which an answer repeats": (RESPONSE, '"prompt_cache_key":"k"', ""),
}


def rows(table: dict[str, tuple[Endpoint, str, str]]) -> list[object]:
    return [pytest.param(*row, id=name) for name, row in table.items()]


@pytest.mark.parametrize(("one", "other"), [pytest.param(*row, id=name) for name, row in EQUAL_BODIES.items()])
def test_spelling_makes_no_difference(one: str, other: str) -> None:
    assert key(one) == key(other)


@pytest.mark.parametrize(("endpoint", "one", "other"), rows(EQUAL))
def test_equal_requests_have_one_key(endpoint: Endpoint, one: str, other: str) -> None:
    assert key(extended(one, endpoint), endpoint) == key(extended(other, endpoint), endpoint)


@pytest.mark.parametrize(("endpoint", "one", "other"), rows(DIFFERENT))
def test_different_requests_have_different_keys(endpoint: Endpoint, one: str, other: str) -> None:
    assert key(extended(one, endpoint), endpoint) != key(extended(other, endpoint), endpoint)


DECLARED = ModelDefaults(temperature=1, top_p=0.95, max_tokens=16)
# endpoint, members of one request, members of the other, whether a model that declares its defaults takes both for one
DEFAULTS_DECLARED = {
    "temperature 1": (TEXT, '"temperature":1', '"temperature":null', True),
    "temperature 1.0": (TEXT, '"temperature":1.0', '"temperature":null', True),
    "temperature 0": (TEXT, '"temperature":0', '"temperature":null', False),
    "top_p 0.95": (TEXT, '"top_p":0.95', "", True),
    "top_p 1, which is the API's and not the model's": (TEXT, '"top_p":1', "", False),
    "max_tokens 16": (TEXT, '"max_tokens":16', '"max_tokens":null', True),
    "max_tokens 16.0": (TEXT, '"max_tokens":16.0', '"max_tokens":null', True),
    "max_tokens 17": (TEXT, '"max_tokens":17', '"max_tokens":null', False),
    "all three": (TEXT, '"temperature":1,"top_p":0.95,"max_tokens":16', '"temperature":null,"max_tokens":null', True),
    "a text that looks like one": (TEXT, '"x":"temperature"', "", False),
    "chat: temperature 1": (CHAT, '"temperature":1', '"temperature":null', True),
    "chat: top_p 0.95": (CHAT, '"top_p":0.95', "", True),
    "chat: max_tokens 16, which is no chat's default": (CHAT, '"max_tokens":16', "", False),
    "chat: max_completion_tokens 16": (CHAT, '"max_completion_tokens":16', "", False),
    "responses: temperature 1": (RESPONSE, '"temperature":1', '"temperature":null', True),
    "responses: max_output_tokens 16": (RESPONSE, '"max_output_tokens":16', "", False),
    "embeddings: an unknown temperature 1": (VECTOR, '"temperature":1', "", False),
    "embeddings: an unknown max_tokens 16": (VECTOR, '"max_tokens":16', "", False),
}


@pytest.mark.parametrize(
    ("endpoint", "one", "other", "is_same"), DEFAULTS_DECLARED.values(), ids=DEFAULTS_DECLARED.keys()
)
def test_a_model_may_declare_what_absent_parameters_are(
    endpoint: Endpoint,
    one: str,
    other: str,
    is_same: bool,  # noqa: FBT001
) -> None:
    requests = [effective(extended(extra, endpoint), endpoint) for extra in (one, other)]
    keys = {cache_key(each, MODEL, scope=ALICE, defaults=DECLARED) for each in requests}
    assert (len(keys) == 1) is is_same
    assert len({cache_key(each, MODEL, scope=ALICE) for each in requests}) == 2


def test_what_is_not_declared_is_kept_apart() -> None:
    requests = [effective(extended(extra)) for extra in ('"temperature":1', '"temperature":null')]
    assert len({cache_key(each, MODEL, scope=ALICE, defaults=ModelDefaults(top_p=1)) for each in requests}) == 2


def test_all_different_requests_differ_from_one_another() -> None:
    bodies = {
        (endpoint, extended(extra, endpoint)) for endpoint, one, other in DIFFERENT.values() for extra in (one, other)
    }
    assert len({key(body, endpoint) for endpoint, body in bodies}) > len(DIFFERENT)


@pytest.mark.parametrize(
    ("dialect", "body", "path_model"),
    [
        pytest.param(Dialect.ENGINES, '{"prompt":"p","temperature":0}', "m", id="the engines path"),
        pytest.param(Dialect.AZURE, '{"prompt":"p","temperature":0}', "m", id="the deployments path"),
        pytest.param(
            Dialect.AZURE, '{"model":"gpt","prompt":"p","temperature":0}', "m", id="the deployments path, model ignored"
        ),
    ],
)
def test_the_dialects_share_entries(dialect: Dialect, body: str, path_model: str) -> None:
    other = cache_key(effective(body, dialect=dialect, path_model=path_model), MODEL, scope=ALICE)
    assert other == key('{"model":"m","prompt":"p","temperature":0}')


@pytest.mark.parametrize(
    ("model", "scope", "api_version"),
    [
        pytest.param("m-b", ALICE, None, id="another model"),
        pytest.param(MODEL, ("user", "org", "user", "bob"), None, id="another user"),
        pytest.param(MODEL, ("user", "org", "service_account", "alice"), None, id="a service account of the same id"),
        pytest.param(MODEL, ("user", "org", "useralice"), None, id="a scope that spells alike"),
        pytest.param(MODEL, ("organization", "org"), None, id="another level"),
        pytest.param(MODEL, ALICE, "2024-06-01", id="an api-version that changes the address"),
    ],
)
def test_model_scope_and_address_are_part_of_the_key(
    model: str, scope: tuple[str, ...], api_version: str | None
) -> None:
    request = effective('{"model":"m","prompt":"p"}')
    assert cache_key(request, model, scope=scope, api_version=api_version) != cache_key(request, MODEL, scope=ALICE)


def test_endpoints_never_share_an_entry() -> None:
    fields = {"prompt": "p", "input": "p", "messages": [{"role": "user", "content": "p"}]}
    keys = {
        cache_key(EffectiveRequest(endpoint, fields, effective('{"model":"m"}').view), MODEL, scope=ALICE)
        for endpoint in Endpoint
    }
    assert len(keys) == len(Endpoint)


def test_the_body_cannot_forge_a_scope() -> None:
    bob = ("user", "org", "user", "bob")
    forged = '{"model":"m","prompt":"p","scope":["user","org","user","bob"]}'
    assert key(forged) != key('{"model":"m","prompt":"p"}', scope=bob)


def test_a_key_is_sixty_four_hexadecimal_digits() -> None:
    made = key('{"model":"m","prompt":"p"}')
    assert len(made) == 64
    assert int(made, 16) >= 0


def test_the_effective_request_is_not_changed() -> None:
    fields = {"prompt": ["p"], "stop": ["x"], "temperature": 0.0, "logit_bias": {"5": 1.0}, "stream": True}
    before = repr(fields)
    canonical_fields(CompletionRequest, fields)
    assert repr(fields) == before


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text('ab"\\1'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, VALUES)
def test_unknown_values_collide_only_when_they_are_the_same(one: object, other: object) -> None:
    view = effective('{"model":"m"}').view
    keys = {cache_key(EffectiveRequest(TEXT, {"x": value}, view), MODEL, scope=ALICE) for value in (one, other)}
    assert (len(keys) == 1) is (typed(one) == typed(other))


LONG = "word " * 1_000
LONG_AND_DIFFERENT = {
    "another character at the end": (LONG, LONG[:-1] + "."),
    "one character less": (LONG, LONG[:-1]),
    "the digest that stands for it": (LONG, "~" + sha256(LONG.encode()).hexdigest()),
    "a long text that begins with a digest": (LONG, "~" + sha256(LONG.encode()).hexdigest() + LONG),
    "a quote and its escape": (LONG + '"', LONG + r"\""),
    "an accent and its letter": (LONG + "é", LONG + "e"),
}


@pytest.mark.parametrize(("one", "other"), LONG_AND_DIFFERENT.values(), ids=LONG_AND_DIFFERENT)
@pytest.mark.parametrize("member", ["prompt", "suffix", "x_vendor"])
def test_long_texts_are_told_apart(member: str, one: str, other: str) -> None:
    keys = [key(extended(f"{dumps(member)}:{dumps(text)}")) for text in (one, one, other)]
    assert keys[0] == keys[1] != keys[2]


def test_long_texts_in_each_others_place_are_another_request() -> None:
    one, other = dumps(LONG), dumps(LONG + ".")
    assert key(extended(f'"prompt":{one},"suffix":{other}')) != key(extended(f'"prompt":{other},"suffix":{one}'))


def test_a_long_text_is_the_same_however_it_is_spelled() -> None:
    spelled = dumps(LONG + '"é/').replace("/", r"\/")
    assert key(extended(f'"prompt":[{spelled}]')) == key(extended(f'"prompt":"{LONG}\\"é/"'))


@given(st.text(min_size=1), st.text(min_size=1))
def test_keys_of_long_texts_differ_when_the_texts_do(one: str, other: str) -> None:
    view = effective('{"model":"m"}').view
    texts = [text * (LONG_CHARACTERS // len(text) + 1) for text in (one, other)]
    keys = {cache_key(EffectiveRequest(TEXT, {"prompt": text}, view), MODEL, scope=ALICE) for text in texts}
    assert len(keys) == len(set(texts))


def typed(value: object) -> object:
    """Return a value that is equal only to itself in the same JSON type."""
    if isinstance(value, dict):
        return {name: typed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    return repr(value)
