"""Functions of the verbs, made from the program's own tree of them (`foreshard completion json`).

So a verb or an option that the program has is here, too, under its name; nothing is listed twice.
"""

import difflib
import functools
import inspect
import json
import keyword
import os

from . import _program
from ._answer import Answer, Document


@functools.lru_cache(maxsize=None)
def tree():
    code, out, errors = _program.command("completion", "json")
    if code != 0:
        raise _program.failure(code, errors.strip())
    return json.loads(out)["verbs"]


def options_of(verb):
    """keyword -> (the option's name, the type of its value, its help)"""
    return {
        name[2:].replace("-", "_"): (name, option["type"], option["help"])
        for option in tree()[verb]["options"]
        for name in option["names"]
        if name.startswith("--") and name not in ("--help", "--json")
    }


def text_of(value):
    return os.fspath(value) if isinstance(value, (str, os.PathLike)) else json.dumps(value)


def assignment(key, value):
    return f"{key}={'none' if value is None else text_of(value)}"


def python_name(name):
    return name + "_" * keyword.iskeyword(name)


def option_words(name, kind, value):
    if value is None or value is False:
        return []
    if not kind:  # a switch
        return [name] if value else []
    if isinstance(value, dict):  # KEY=VALUE
        return [word for item in value.items() for word in (name, assignment(*item))]
    many = list(value) if isinstance(value, (list, tuple, set, range)) else [value]
    if kind == "LIST":
        return [name, ",".join(map(text_of, many))]
    return [word for one in many for word in (name, text_of(one))]


def arguments_of(verb, positional, keywords):
    """The command line of a call; a keyword that is no option is a key of the plan."""
    options = options_of(verb)
    keywords = {name.rstrip("_"): value for name, value in keywords.items()}
    plan = keywords.get("plan")
    if positional and isinstance(positional[0], dict):
        plan, positional = positional[0], positional[1:]
    if isinstance(plan, dict):
        keywords = {**plan, **{name: value for name, value in keywords.items() if name != "plan"}}
    has_argument = tree()[verb]["argument"] is not None
    if "model" in options:
        for name, value in zip(("model", "cluster"), positional):
            if keywords.setdefault(name, value) is not value:
                raise TypeError(f"{verb}() got {name} twice")
        positional = tuple(positional[2:])
        positional += tuple(keywords.pop("files", ())) if has_argument else ()
    if positional and not has_argument:
        raise TypeError(f"{verb}() takes a model and a cluster, then keywords; {positional[0]!r} is too many")
    words = [text_of(one) for one in positional]
    for name, value in keywords.items():
        flag, kind, _ = options.get(name, (None, None, None))
        if flag and (kind == "KEY=VALUE" or not isinstance(value, dict)):
            words += option_words(flag, kind, value)
        elif "set" in options:
            words += ["--set", assignment(name, value)]
        else:
            near = difflib.get_close_matches(name, options, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"{verb}() has no keyword {name!r}; expected {', '.join(options)}{hint}")
    return words


def call(verb, *positional, check=True, **keywords):
    """A verb's answer: its JSON document, or its text where it has none. `check=False` returns an answer
    that does not fit, or is outside a tolerance, instead of raising it; `exit_code` then says so."""
    words = [verb, *arguments_of(verb, positional, keywords)]
    has_json = any("--json" in option["names"] for option in tree()[verb]["options"])
    code, out, errors = _program.command(*words, *(["--json"] if has_json else []))
    notes = [line[len("foreshard: "):] if line.startswith("foreshard: ") else line
             for line in errors.strip().splitlines()]
    answer = out
    if has_json and out:
        answer = Answer(json.loads(out, object_hook=Document), exit_code=code, notes=notes)
    if code != 0 and (check or not out):
        told = "\n".join(notes) or (answer.verdict if has_json and out else f"exit code {code}")
        raise _program.failure(code, told, answer if out else None)
    return answer


def function_of(verb):
    def function(*positional, check=True, **keywords):
        return call(verb, *positional, check=check, **keywords)

    options = options_of(verb)
    known = tree()[verb]
    kinds = inspect.Parameter
    function.__name__ = function.__qualname__ = verb
    function.__doc__ = "\n".join(
        [f"{known['help']} (`foreshard {verb}`).", ""]
        + [f"{python_name(name)}: {told}{f' ({kind})' if kind else ''}" for name, (_, kind, told) in options.items()]
        + ["", "Further keywords are keys of the plan: mesh={'shard': 8}."] * ("set" in options)
    )
    function.__signature__ = inspect.Signature(
        [kinds("args", kinds.VAR_POSITIONAL)]
        + [kinds(python_name(name), kinds.KEYWORD_ONLY, default=None) for name in options]
        + [kinds("check", kinds.KEYWORD_ONLY, default=True), kinds("keys", kinds.VAR_KEYWORD)]
    )
    return function
