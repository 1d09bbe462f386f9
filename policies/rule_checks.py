"""What makes no sense in a configured rule, one sentence a problem: asked when a configuration is read.

Knows rules as they are written and the types of parameters; what a rule does to a request is in `parameters`.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from policies.bounds import find_broken, is_number, let_through, written
from policies.computed import COMPUTED
from policies.merging import Forced, as_merged
from policies.parameters import UNKNOWN
from policies.requests.ceilings import CEILING, CEILING_NAMES
from policies.requests.dialects import REQUEST_TYPES
from policies.requests.fields import NumberType, expectation, number_type
from policies.requests.forms import input_form
from policies.requests.meaning import Unread, vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from policies.merging import MergedRule, Part
    from policies.policy import Rule
    from policies.requests.fields import EndpointRequest
    from policies.requests.meaning import Meaning

NOT_RULED: Final = {
    "model": "say `models` of the policy, the project or the key",
    "models": "it stands beside `parameters`, as in models: [gpt-*]",
    UNKNOWN: "it stands beside `parameters`, as in unknown_parameters: drop",
    "messages": "a chat cannot do without it",
    "input": "a request cannot do without it",
    **{
        name: f"say `{CEILING}`: it binds the token ceiling under every name"
        for name in CEILING_NAMES
        if name != CEILING
    },
}
"""Names that are no parameters to rule, and what to say instead."""
PARTS: Final = (
    *("max", "min", "allowed", "default", "force", "forbid"),
    *("add", "strip_trailing_space", "pseudonymise"),
)
"""What a rule may say, by the names of its settings; the others say how it is meant."""
_LIKENESS: Final = 0.85


def kinds_with(name: str) -> list[type[EndpointRequest]]:
    """Return the request types that have a parameter of this name."""
    return [kind for kind in REQUEST_TYPES.values() if name in kind.model_fields]


def lets_nothing_through(rule: MergedRule) -> bool:
    """Tell whether bounds contradict each other, so that every value is refused."""
    values = [part.value for part in rule.bounds] if rule.listed is None else rule.listed
    return bool(rule.bounds) and all(find_broken(value, rule) for value in values)


def check_rule(name: str, rule: Rule) -> list[str]:
    """Say what makes no sense in a configured rule, one sentence a problem; empty when all is well."""
    if name in NOT_RULED:
        return [f"{name} cannot be ruled here: {NOT_RULED[name]}"]
    merged = as_merged(rule, name)
    if not (merged.parts or rule.override):  # an override that says nothing else lifts what stands outside
        return [f"the rule says nothing; give {', '.join(PARTS[:-1])} or {PARTS[-1]}"]
    checks = (
        _check_computed_rule if name in COMPUTED else _check_name,
        _check_parts,
        _check_bounds,
        _check_values,
        _check_rewriting,
    )
    return [*_check_pseudonym(rule), *(problem for check in checks for problem in check(name, merged))]


def _check_pseudonym(rule: Rule) -> Iterator[str]:
    if rule.pseudonymise and rule.force is not None:  # merged, only one of them is left
        yield "pseudonymise leaves nothing for force to say"


def _check_name(name: str, rule: MergedRule) -> Iterator[str]:
    del rule
    known = {parameter for kind in REQUEST_TYPES.values() for parameter in kind.model_fields}
    alike = [] if name in known else get_close_matches(name, sorted(known | COMPUTED.keys()), n=1, cutoff=_LIKENESS)
    whole, dot, _ = name.partition(".")
    if dot and whole in known:
        yield f"no endpoint has a parameter {name}; a rule is on a whole parameter, such as {whole}"
    elif alike:
        yield f"no endpoint has a parameter {name}; did you mean {alike[0]}?"


def _check_computed_rule(name: str, rule: MergedRule) -> Iterator[str]:
    if any(part not in rule.bounds or part in rule.allowed for part in rule.parts):
        yield f"{name} is computed from the request: it takes max and min only"
    if any(part.on_violation == "clamp" for part in rule.bounds):
        yield f"{name} is computed from the request and cannot be clamped: on_violation must be reject"


def _check_parts(name: str, rule: MergedRule) -> Iterator[str]:
    del name
    others = {
        "max": rule.max,
        "min": rule.min,
        "allowed": rule.listed,
        "default": rule.default,
        _forcing(rule): rule.force,
        "strip_trailing_space": rule.strip,
        "add": rule.add or None,
    }
    said = [other for other, part in others.items() if part is not None]
    if rule.forbid and said:
        yield f"forbid leaves nothing for {', '.join(said)} to say"
    left = [other for other in said if other in {"default", "strip_trailing_space", "add"}]
    if rule.force and left:
        yield f"{_forcing(rule)} leaves nothing for {', '.join(left)} to say"


def _forcing(rule: MergedRule) -> str:
    return "pseudonymise" if rule.force and rule.force.value is Forced.PSEUDONYM else "force"


def _check_bounds(name: str, rule: MergedRule) -> Iterator[str]:
    del name
    if rule.max and rule.min and rule.min.value > rule.max.value:
        yield f"min is {rule.min.value}, above max, which is {rule.max.value}: nothing is let through"
        return
    if rule.listed == ():
        yield "allowed is empty: nothing is let through"
    if None in (rule.listed or ()):
        yield "allowed holds null, which is as good as absent and never refused; leave it out"
    if rule.listed and rule.allowed[0].on_violation == "clamp" and not all(map(is_number, rule.listed)):
        yield "only numbers can be clamped: on_violation must be reject"
    for said, part in (("default", rule.default), ("force", _literal(rule.force))):
        broken = find_broken(part.value, rule) if part else None
        if part and broken:
            yield f"{said} is {written(part.value)}; the rule itself allows {let_through(broken, rule)}"


def _check_values(name: str, rule: MergedRule) -> Iterator[str]:
    kinds = kinds_with(name)
    if not kinds:
        return
    numbers = [found for kind in kinds if (found := number_type(kind, name))]
    for said, part, is_outside in (("max", rule.max, NumberType.is_below), ("min", rule.min, NumberType.is_above)):
        if part is None:
            continue
        if not numbers:
            yield f"{said} is {part.value}, but {name} is no number; use allowed, force or forbid"
        elif all(number.is_integer for number in numbers) and not isinstance(part.value, int):
            yield f"{said} is {part.value}, but {name} is an integer"
        elif all(is_outside(number, part.value) for number in numbers):
            yield f"{said} is {part.value}, outside what {name} may be: nothing is let through"
    literal = (("default", rule.default), ("force", _literal(rule.force)))
    said_of = [(said, part.value) for said, part in literal if part]
    said_of += [("allowed", value) for value in rule.listed or () if value is not None]
    judges = _judges(name, kinds)
    for said, value in said_of:
        if not any(kind.takes(name, value) for kind in judges):
            yield f"{said} is {written(value)}; {name} must be {' or '.join({expectation(k, name): 0 for k in judges})}"


def _judges(name: str, kinds: Sequence[type[EndpointRequest]]) -> list[type[EndpointRequest]]:
    """Return the endpoints that can tell whether a value is one: not those that do not read what another one reads.

    Of one name, parameters of different forms are different things, such as the `prompt` of completions and responses.
    """

    def form(kind: type[EndpointRequest]) -> object:
        return vocabulary(kind).forms.get(name)

    reading = [kind for kind in kinds if kind.model_fields[name].annotation is not Unread]
    forms = [form(kind) for kind in reading]
    return [kind for kind in kinds if kind in reading or form(kind) not in forms]


def _literal(force: Part | None) -> Part | None:
    """Return what forces a value that stands in the configuration."""
    return None if force is None or force.value is Forced.PSEUDONYM else force


def _check_rewriting(name: str, rule: MergedRule) -> Iterator[str]:
    """Check what only some parameters are for: texts that are stripped or added to, and names of end users."""
    tables = [vocabulary(kind) for kind in kinds_with(name)]
    if rule.strip and not any(each.forms.get(name) is input_form for each in tables):
        yield f"strip_trailing_space is for {_those_with(lambda each: each.form is input_form)}, not for {name}"
    if rule.force and rule.force.value is Forced.PSEUDONYM and not any(e.meanings[name].names_end_user for e in tables):
        yield f"pseudonymise is for {_those_with(lambda each: each.names_end_user)}, not for {name}"
    most = max((each.meanings[name].max_items or 0 for each in tables), default=0)
    if rule.add and not most:
        yield f"add is for {_those_with(lambda each: each.max_items is not None)}, not for {name}"
    elif len(rule.add) > most:
        yield f"add holds {len(rule.add)} texts; {name} takes at most {most}"


def _those_with(is_meant: Callable[[Meaning], bool]) -> str:
    """Name the parameters that something is for."""
    names = {
        name
        for kind in REQUEST_TYPES.values()
        for name, meaning in vocabulary(kind).meanings.items()
        if is_meant(meaning) and name not in NOT_RULED
    }
    return " and ".join(sorted(names, reverse=True))
