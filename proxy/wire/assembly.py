"""Whole answers to arrays, taken apart into one answer for each item, and put together of such (SPEC §6).

What is neither renumbered nor counted is carried as the bytes it came in: vectors, texts and numbers keep their
spelling. Knows the shapes of answers to completions and embeddings; knows no request, no key and no store.

Usage: servers report one total for an array. An item's share of it is ours: of the input by our own count of each
item, of the output by what the item's choices hold. Shares are whole, never negative, and add up to the report, no more
and no less: vLLM adds all prompts up (but tells what it had in its own cache of the last one only), llama.cpp reports
its first choice, and then all shares together are as much too low as that report. What a request is charged is
decided in `policies/charges.py`, which does not believe such a report.
"""

from __future__ import annotations

import re
from itertools import chain
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from policies.requests.asked import Endpoint
from proxy.wire.raw_json import EMPTY_LIST, NULL, Members, members_of, objects_of, string_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_VECTORS: Final = "data"
_ENTRIES: Final = {Endpoint.COMPLETIONS: "choices", Endpoint.EMBEDDINGS: _VECTORS}
"""The member that holds what is answered for each item."""
_INDEX: Final = "index"
_USAGE: Final = "usage"
_FILTERS: Final = ("prompt_filter_results", "prompt_annotations")
"""Azure's, under its newer and its older name: what its filters say of each prompt."""
_FILTERED_INDEX: Final = "prompt_index"
_FINGERPRINT: Final = "system_fingerprint"
_INPUT_COUNTS: Final = ("prompt_tokens", "input_tokens")
_OUTPUT_COUNTS: Final = ("completion_tokens", "output_tokens")
_OF_INPUT: Final = ("prompt", "input")
_OF_OUTPUT: Final = ("completion", "output")
"""How the names of counts begin that are of the input only, or of the output only, and of the objects of such."""
_COUNT: Final = re.compile(rb"([0-9]{1,18})(?:\.0+)?")
_ABSENT: Final = msgspec.Raw(b"")
_FIRST: Final = msgspec.Raw(b"0")


class _Logprobs(msgspec.Struct):
    """Both shapes: of completions, and of chat, which llama.cpp writes here too."""

    tokens: list[msgspec.Raw] | None = None
    content: list[msgspec.Raw] | None = None


class _Vectors(msgspec.Struct, forbid_unknown_fields=True):
    """An answer with the members that embeddings have everywhere, and no others: so that the vectors are read once."""

    id: msgspec.Raw = _ABSENT
    object: msgspec.Raw = _ABSENT
    created: msgspec.Raw = _ABSENT
    data: list[Members] = []
    model: msgspec.Raw = _ABSENT
    usage: msgspec.Raw = _ABSENT


class _Unfit(Exception):  # noqa: N818  what an answer is, not that it is an error
    """An answer does not hold what it is to be taken apart into, or put together of."""


_UNUSABLE: Final = (_Unfit, msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_read_vectors: Final = msgspec.json.Decoder(_Vectors).decode
_read_index: Final = msgspec.json.Decoder(int).decode
_read_logprobs: Final = msgspec.json.Decoder(_Logprobs).decode
_encode: Final = msgspec.json.Encoder().encode


def split_answer(
    endpoint: Endpoint, whole: bytes, weights: Sequence[int], choices_each: int
) -> tuple[bytes, ...] | None:
    """Return one body for each item of an array, as its server would have answered it alone.

    `weights` are how much of the input each item is by our own count, from 0; `choices_each` how many choices each has,
    1 for embeddings. Choices and embeddings are taken in the order of their `index`, and that begins anew with each
    item; every member that is not counted or numbered stands in all bodies. None where the answer is no JSON object
    that holds exactly those choices or embeddings.
    """
    try:
        return _split(endpoint, whole, weights, choices_each)
    except _UNUSABLE:
        return None


def assemble(endpoint: Endpoint, bodies: Sequence[bytes]) -> bytes | None:
    """Put answers to single items together, in their order, as one answer to the array of them.

    An answer may stand there several times, and is counted as often. Counts of `usage` are added up, and all of it is
    left out where an answer has none; what is no count stands there if all who tell it say the same, and so does the
    fingerprint. Every other member is that of the first answer. None where one of them is no answer to this endpoint,
    or they differ in how many choices they have.
    """
    try:
        return _assemble(endpoint, bodies)
    except _UNUSABLE:
        return None


# Taking apart --------------------------------------------------------------------------------------------------------


class _Parts(NamedTuple):
    """How much of the input and of the output each item is."""

    inputs: Sequence[int]
    outputs: Sequence[int]

    def of(self, name: str) -> Sequence[int]:
        """Return how a count of this name is shared out: by the one, by the other, or by both together."""
        if name.startswith(_OF_INPUT):
            return self.inputs
        return self.outputs if name.startswith(_OF_OUTPUT) else list(map(add, self.inputs, self.outputs))


def _split(endpoint: Endpoint, whole: bytes, weights: Sequence[int], choices_each: int) -> tuple[bytes, ...]:
    name = _entries_name(endpoint)
    answer, entries = _read(whole, name)
    if len(entries) != len(weights) * choices_each:
        raise _Unfit
    items = [entries[start : start + choices_each] for start in range(0, len(entries), choices_each)]
    columns: dict[str, Sequence[object]] = {name: list(map(_numbered, items))}
    usage = _find_object(answer.get(_USAGE, NULL))
    if usage is not None:
        columns[_USAGE] = _shared_members(usage, len(items), _parts(usage, items, weights).of)
    for each in _FILTERS:
        said = _find_filters(answer.get(each, NULL), len(items))
        if said is not None:
            columns[each] = said
    return tuple(_encode({**answer, **own}) for own in _rows(columns, len(items)))


def _parts(usage: Members, items: Sequence[Sequence[Members]], weights: Sequence[int]) -> _Parts:
    reported_input, reported_output = _first_count(usage, _INPUT_COUNTS), _first_count(usage, _OUTPUT_COUNTS)
    inputs = weights if reported_input is None else share_out(reported_input, weights)
    if not reported_output:
        return _Parts(inputs, [0] * len(items))
    return _Parts(inputs, share_out(reported_output, _generated(items, reported_output, inputs)))


def _generated(items: Sequence[Sequence[Members]], reported: int, inputs: Sequence[int]) -> Sequence[int]:
    """Return how much the choices of each item hold: tokens where all tell theirs, else bytes of text.

    Tokens that repeat the prompt do not count where the report is of the others.
    """
    told = [[_find_tokens(choice) for choice in item] for item in items]
    tokens = [sum(each for each in item if each is not None) for item in told]
    if any(None in item for item in told):
        return [sum(map(_text_bytes, item)) for item in items]
    new = [count - len(item) * repeated for count, item, repeated in zip(tokens, items, inputs, strict=True)]
    return new if sum(new) == reported and min(new) >= 0 else tokens


def _find_tokens(choice: Members) -> int | None:
    """Return of how many tokens a choice tells the probabilities; None where it tells none."""
    try:
        logprobs = _read_logprobs(choice.get("logprobs", NULL))
    except msgspec.ValidationError:
        return None
    told = logprobs.content if logprobs.tokens is None else logprobs.tokens
    return None if told is None else len(told)


def _text_bytes(choice: Members) -> int:
    try:
        return len(string_of(choice.get("text", NULL)).encode())
    except msgspec.ValidationError:
        return 0


def _shared_members(
    members: Members, items: int, parts_of: Callable[[str], Sequence[int]]
) -> Sequence[Mapping[str, object]]:
    """Return what each item has of an object of counts."""
    return _rows({name: _shared(value, parts_of(name)) for name, value in members.items()}, items)


def _shared(value: msgspec.Raw, parts: Sequence[int]) -> Sequence[object]:
    """Share a count out; what is none, such as a price or a time, is told to all.

    The details of a count are shared out as the count is: no item has more of a detail than of the whole.
    """
    count = _find_count(value)
    if count is not None:
        return share_out(count, parts)
    details = _find_object(value)
    return [value] * len(parts) if details is None else _shared_members(details, len(parts), lambda _: parts)


def share_out(total: int, parts: Sequence[int]) -> list[int]:
    """Share a total out in proportion to parts, evenly where all are 0: each share is the exact one, cut or rounded up.

    The largest remainders are rounded up, of equal ones the first.
    """
    whole = sum(parts)
    divided = [divmod(total * part, whole) if whole else divmod(total, len(parts)) for part in parts]
    shares = [share for share, _ in divided]
    missing = total - sum(shares)
    for position in sorted(range(len(shares)), key=lambda position: -divided[position][1])[:missing]:
        shares[position] += 1
    return shares


def _rows(columns: Mapping[str, Sequence[object]], count: int) -> list[dict[str, object]]:
    return [{name: column[row] for name, column in columns.items()} for row in range(count)]


# Putting together ----------------------------------------------------------------------------------------------------


def _assemble(endpoint: Endpoint, bodies: Sequence[bytes]) -> bytes:
    name = _entries_name(endpoint)
    read = [_read(body, name) for body in bodies]
    answers, items = [answer for answer, _ in read], [entries for _, entries in read]
    lengths = set(map(len, items))
    if len(lengths) != 1 or 0 in lengths:
        raise _Unfit
    body: dict[str, object] = {**answers[0], name: _numbered(list(chain.from_iterable(items)))}
    if not _are_same([answer.get(_FINGERPRINT, _ABSENT) for answer in answers]):
        body.pop(_FINGERPRINT, None)
    _add_usages(answers, body)
    for filters in _FILTERS:
        _join_filters(answers, filters, body)
    return _encode(body)


def _add_usages(answers: Sequence[Members], body: dict[str, object]) -> None:
    """Add up what the answers report; where one reports nothing, no sum would be true."""
    told = [answer.get(_USAGE, NULL) for answer in answers]
    if NULL not in told:
        body[_USAGE] = _added(told)
    elif not _are_same(told):
        body.pop(_USAGE, None)


def _added(told: Sequence[msgspec.Raw]) -> object:
    """Add up counts, and objects of such; what is neither stands as it is if all say the same, else as null."""
    known = [each for each in told if each != NULL]
    counts = [_find_count(each) for each in known]
    if known and None not in counts:
        return sum(count for count in counts if count is not None)
    objects = [members for each in known if (members := _find_object(each)) is not None]
    if known and len(objects) == len(known):
        names = dict.fromkeys(chain.from_iterable(objects))
        return {name: _added([each[name] for each in objects if name in each]) for name in names}
    return known[0] if known and _are_same(known) else NULL


def _join_filters(answers: Sequence[Members], name: str, body: dict[str, object]) -> None:
    """Say of each prompt what its answer said; what cannot be read so is that of the first answer."""
    said = [_find_filters(answer.get(name, EMPTY_LIST), 1) for answer in answers]
    found = [each[0] for each in said if each is not None]
    if len(found) == len(answers) and any(found):
        body[name] = [
            {**result, _FILTERED_INDEX: position} for position, results in enumerate(found) for result in results
        ]


# Reading -------------------------------------------------------------------------------------------------------------


def _read(body: bytes, name: str) -> tuple[Members, list[Members]]:
    """Return an answer's members, and its choices or embeddings in order."""
    if not body.isascii():
        body.decode()  # values that are only carried are not looked at otherwise
    vectors = _find_vectors(body) if name == _VECTORS else None
    if vectors is not None:
        told = msgspec.structs.asdict(vectors)
        return {name: value for name, value in told.items() if value is not _ABSENT}, _in_order(vectors.data)
    answer = members_of(body)
    return answer, _in_order(objects_of(answer.get(name, NULL)))


def _find_vectors(body: bytes) -> _Vectors | None:
    """Return an answer with embeddings; None for one that has other members too, which is read in two steps."""
    try:
        return _read_vectors(body)
    except msgspec.ValidationError:
        return None


def _entries_name(endpoint: Endpoint) -> str:
    name = _ENTRIES.get(endpoint)
    if name is None:
        raise _Unfit
    return name


def _in_order(found: Sequence[Members]) -> list[Members]:
    """Return choices or embeddings by their index; each from 0 on has to be there once."""
    entries = {_read_index(entry.get(_INDEX, _FIRST)): entry for entry in found}
    if sorted(entries) != list(range(len(found))):
        raise _Unfit
    return [entries[index] for index in range(len(found))]


def _numbered(entries: Iterable[Members]) -> list[dict[str, object]]:
    return [{**entry, _INDEX: index} for index, entry in enumerate(entries)]


def _find_filters(value: msgspec.Raw, prompts: int) -> list[list[dict[str, object]]] | None:
    """Return what filters say of each prompt, numbered as a single one's; None where that is not what stands there."""
    said: list[list[dict[str, object]]] = [[] for _ in range(prompts)]
    try:
        for result in objects_of(value):
            index = _read_index(result.get(_FILTERED_INDEX, NULL))
            if not 0 <= index < prompts:
                return None
            said[index].append({**result, _FILTERED_INDEX: 0})
    except msgspec.ValidationError:
        return None
    return said


def _find_object(value: msgspec.Raw) -> Members | None:
    try:
        return members_of(value)
    except msgspec.ValidationError:
        return None


def _first_count(members: Members, names: Iterable[str]) -> int | None:
    """Return the first count of these names that stands there."""
    counts = (_find_count(members.get(name, NULL)) for name in names)
    return next((count for count in counts if count is not None), None)


def _find_count(value: msgspec.Raw) -> int | None:
    found = _COUNT.fullmatch(bytes(value))
    return None if found is None else int(found[1])


def _are_same(values: Iterable[msgspec.Raw]) -> bool:
    return len(set(map(bytes, values))) == 1
