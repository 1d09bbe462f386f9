"""The one form that stands for all spellings of a value: `0.0` is `0`, an array of one prompt is the prompt (SPEC §6).

Cache keys are made of these forms, and rules compare by them. Knows JSON values; which parameter has which form is
said where the parameter is declared.
"""

from __future__ import annotations

from itertools import chain


def number(value: object) -> object:
    """Write a whole number as an integer: `0.0` and `-0.0` are `0`."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def numbers(value: object) -> object:
    """Write the numbers of a map, as `logit_bias` is one."""
    return {name: number(each) for name, each in value.items()} if isinstance(value, dict) else value


def stop_form(value: object) -> object:
    """Write an array of one text as the text, as `stop` takes both."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str) else value


def one_or_many(value: object) -> object:
    """Write an array of one text, or of one array, as its element: one prompt, one stop."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list) else value


def input_form(value: object) -> object:
    """Write a prompt or input: an array of one as its element, token ids as integers."""
    only = one_or_many(value)
    if not isinstance(only, list):
        return only
    ids = chain.from_iterable(only) if only and isinstance(only[0], list) else only
    return _whole_numbers(only) if float in map(type, ids) else only


def _whole_numbers(value: object) -> object:
    return list(map(_whole_numbers, value)) if isinstance(value, list) else number(value)
