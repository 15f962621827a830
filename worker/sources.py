"""Where settings come from: `lastword.toml`, then the environment, and files that hold secrets.

What belongs here: finding, reading and merging the sources, knowing where each value came from, and turning every
fault into a `ConfigurationError` that names field, value, place and fix. What must not be known here: any setting.

The file is `LASTWORD_CONFIG`, else `lastword.toml` in the working directory, else none. A variable outranks the file:
`LASTWORD_` and the path of the field in upper case, joined by two underscores. Lists and tables are given as JSON.
Paths in the file are relative to its folder, paths in the environment to the working directory.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from worker.errors import ConfigurationError

PREFIX = "LASTWORD_"
DELIMITER = "__"
_CONFIG_VARIABLE = PREFIX + "CONFIG"
_DEFAULT_FILE = Path("lastword.toml")
_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=")

_UP_TO_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._-]+(?=[:/?#]|$)")
_URL_SECRETS = re.compile(r"(?<=://)[^/?#]*@|(?<=[?#]).*", re.DOTALL)

SettingsT = TypeVar("SettingsT", bound=BaseSettings)
T = TypeVar("T")
FieldPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origins:
    """What each source said, and where: the line of each path in the file, the variable of each in the environment."""

    file: Path | None
    in_file: Mapping[str, object]
    lines: Mapping[FieldPath, int]
    in_environment: Mapping[str, object]
    variables: Mapping[FieldPath, str]

    def of(self, path: FieldPath) -> str | None:
        """`environment NAME`, `FILE:LINE`, or None for a default."""
        if _holds(self.in_environment, path):
            return f"environment {_nearest_place(self.variables, path)}"
        if _holds(self.in_file, path):
            return f"{self.file}:{_nearest_place(self.lines, path)}"
        return None

    def near(self, path: FieldPath) -> str | None:
        """The place of the value, else that of the table which lacks it."""
        places = (self.of(path[:end]) for end in range(len(path), 0, -1))
        return next((place for place in places if place is not None), None)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[SettingsT]):
    """Settings and where their values came from."""

    settings: SettingsT
    origins: Origins


def load(model: type[SettingsT]) -> Loaded[SettingsT]:
    """Read every source and build the settings. Raises ConfigurationError with all faults, one a line."""
    file = _config_file()
    in_file, lines = ({}, {}) if file is None else _read_file(file)
    variables = _variables(model)
    try:
        in_environment = EnvSettingsSource(
            model, env_prefix=PREFIX, env_nested_delimiter=DELIMITER, env_ignore_empty=True, case_sensitive=False
        )()
    except SettingsError:  # its words name the section alone
        names = " or ".join(variables.values())
        raise ConfigurationError(
            f"{names} is to be a list or a table, but is no JSON; write [...] or {{...}}"
        ) from None
    origins = Origins(file, in_file, lines, in_environment, variables)
    return Loaded(build(model, _merged(in_file, in_environment), origins), origins)


def build(model: type[SettingsT], values: Mapping[str, object], origins: Origins) -> SettingsT:
    """Settings from values alone. Raises ConfigurationError with all faults, one a line."""
    try:
        return model.model_validate(values)
    except ValidationError as fault:
        faults = [_told(model, error, origins) for error in fault.errors(include_url=False, include_context=False)]
        raise ConfigurationError("the settings are not valid:\n" + "\n".join(f"  {text}" for text in faults)) from None


def is_secret(field: FieldInfo) -> bool:
    """Whether the value of a field is never shown."""
    return extra(field).get("shown") == "host" or _holds_secret(field.annotation)


def _holds_secret(annotation: object) -> bool:
    return annotation is SecretStr or any(_holds_secret(each) for each in get_args(annotation))


def extra(field: FieldInfo) -> dict[str, object]:
    """What a field says beyond its kind: its `unit`; `shown` = host where a URL may be shown up to there."""
    return dict(field.json_schema_extra) if isinstance(field.json_schema_extra, dict) else {}


def limits(field: FieldInfo) -> str:
    """The least and the greatest value of a number with its unit, or nothing."""
    low = next((limit.ge for limit in field.metadata if hasattr(limit, "ge")), None)
    high = next((limit.le for limit in field.metadata if hasattr(limit, "le")), None)
    return "" if low is None or high is None else f"{low:g} to {high:.12g} {extra(field).get('unit', '')}"


def nearest(name: str, known: Sequence[str]) -> str:
    """`did you mean X?`, or the known names, for the end of a message about a name that nobody knows."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known names: {', '.join(sorted(known))}" if known else "none is known"


def _config_file() -> Path | None:
    named = os.environ.get(_CONFIG_VARIABLE)
    if named:
        return Path(named).expanduser()
    return _DEFAULT_FILE if _DEFAULT_FILE.is_file() else None


def _read_file(file: Path) -> tuple[dict[str, object], dict[FieldPath, int]]:
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except OSError as fault:
        raise ConfigurationError(
            f"the settings file {file} cannot be read ({fault.strerror}); correct or unset {_CONFIG_VARIABLE}"
        ) from None
    except ValueError as fault:
        raise ConfigurationError(f"the settings file {file} is not TOML: {fault}") from None
    return _rooted(values, file.parent.resolve()), _lines(text)


def _rooted(values: dict[str, object], folder: Path) -> dict[str, object]:
    """The values with every path in them made independent of the working directory."""
    rooted: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            rooted[name] = _rooted(value, folder)
        elif isinstance(value, str) and name.endswith(("_file", "_dir")):
            rooted[name] = str(folder / Path(value).expanduser())
        else:
            rooted[name] = value
    return rooted


def _lines(text: str) -> dict[FieldPath, int]:
    """The line of every key and table. TOML's reader does not tell; a multi-line text may fool this one."""
    lines: dict[FieldPath, int] = {}
    table: FieldPath = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _TABLE.match(line):
            table = _parts(match[1])
            lines.setdefault(table, number)
        elif match := _KEY.match(line):
            lines.setdefault((*table, *_parts(match[1])), number)
    return lines


def _parts(dotted: str) -> FieldPath:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _variables(model: type[BaseSettings]) -> dict[FieldPath, str]:
    """The variables that are ours, by path. Refuses one that no field knows, if the model refuses unknown keys."""
    found: dict[FieldPath, str] = {}
    for variable, value in os.environ.items():
        if not variable.upper().startswith(PREFIX) or variable.upper() == _CONFIG_VARIABLE or not value:
            continue
        path = tuple(variable[len(PREFIX) :].lower().split(DELIMITER))
        if path[0] not in model.model_fields:
            if path[0] in _renamed(model):
                spelt = PREFIX + DELIMITER.join((_renamed(model)[path[0]], *path[1:])).upper()
                raise ConfigurationError(f"the environment variable {variable} is called {spelt} now: rename it")
            if model.model_config.get("extra") == "forbid":
                known = [PREFIX + DELIMITER.join(name).upper() for name in _names(model, ())]
                raise ConfigurationError(
                    f"the environment variable {variable} is no setting; {nearest(variable, known)}"
                )
            continue
        found[path] = variable
    return found


def _renamed(model: type[BaseModel]) -> Mapping[str, str]:
    """What sections of the model were called before, and what they are called now."""
    found: Mapping[str, str] = getattr(model, "renamed", {})
    return found


def _names(model: type[BaseModel], path: FieldPath) -> Iterator[FieldPath]:
    for name, field in model.model_fields.items():
        yield (*path, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _names(field.annotation, (*path, name))


def _merged(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        merged[name] = _merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def _holds(values: object, path: FieldPath) -> bool:
    for name in path:
        if not isinstance(values, dict) or name not in values:
            return False
        values = values[name]
    return True


def _nearest_place(places: Mapping[FieldPath, T], path: FieldPath) -> T | None:
    """The place of the path, of a table around it, or of a part of it."""
    around = (places[path[:end]] for end in range(len(path), 0, -1) if path[:end] in places)
    within = (place for each, place in places.items() if each[: len(path)] == path)
    return next(around, next(within, None))


def _holder(model: type[BaseModel], path: FieldPath) -> type[BaseModel] | None:
    """The model that the last part of `path` is a field of."""
    parts = iter(path[:-1])
    for part in parts:
        field = model.model_fields.get(part)
        annotation = field.annotation if field is not None else None
        if get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
            next(parts, None)
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return None
        model = annotation
    return model


def _told(model: type[BaseModel], error: ErrorDetails, origins: Origins) -> str:
    path = tuple(str(part) for part in error["loc"])
    holder = _holder(model, path) if path else None
    field = holder.model_fields.get(path[-1]) if holder is not None else None
    name, place, value = ".".join(path), origins.near(path), error["input"]
    where = f" ({place})" if place else ""
    text = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden" and len(path) == 1 and path[0] in _renamed(model):
        new = _renamed(model)[path[0]]
        return f"{name}{where} is called {new} now: write [{new}.NAME] for [{name}.NAME]"
    if error["type"] == "extra_forbidden":  # its value is not shown: it may be a secret under a mistyped name
        return f"{name}{where} is no setting; {nearest(path[-1], list(holder.model_fields) if holder else [])}"
    if error["type"] == "missing":
        return f"{name} is not set; set it in lastword.toml or as {PREFIX}{DELIMITER.join(path).upper()}"
    if not path:
        return text
    shown = ""
    if error["type"] == "refused_url":  # of `worker.fields`: all but scheme and host may be a secret
        host = None if "@" in value else _UP_TO_HOST.match(value)
        shown = f" = {host[0] + '/...'!r}" if host else ""
    elif isinstance(value, str | int | float) and field is not None and not is_secret(field):
        shown = f" = {_URL_SECRETS.sub('***', value)[:80]!r}" if isinstance(value, str) else f" = {value!r}"
    return f"{name}{shown}{where}: {text}{_bounds(field)}"


def _bounds(field: FieldInfo | None) -> str:
    allowed = "" if field is None else limits(field)
    return f" (allowed: {allowed}, default {field.default})" if field is not None and allowed else ""
