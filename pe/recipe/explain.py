"""Every key of a recipe with its values, its default and its meaning, from the code that reads it.

Keys come from the schema's fields and from the settings of plug-ins; meanings from the fields'
descriptions, or from the sections Args and Attributes of docstrings, those of base classes
included.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args

from docstring_parser import DocstringStyle, parse
from pydantic import PydanticSchemaGenerationError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo

from pe.data.columns import Column
from pe.errors import PluginError
from pe.plugins.protocols import Generator, class_default, info_of
from pe.plugins.registry import Group, load, plugins
from pe.plugins.settings import fields_of, models_in
from pe.plugins.specs import part_among, settings_of
from pe.private.source import PrivateSource
from pe.recipe.page import page as template_page
from pe.recipe.schema import Recipe

_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_WORDS = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "object": "mapping",
}


@dataclass(frozen=True)
class Key:
    """One key of a recipe, by its dotted name. `default` is None if the key must be given."""

    name: str
    values: str
    default: str | None
    meaning: str


@dataclass(frozen=True)
class ExplainedPart:
    """A section of the recipe (`kind` is empty), or a plug-in that serves one. `text` describes it.

    A generator has a `source`, the words for what its samples come from. `costs` says what a
    plug-in needs and costs.
    """

    section: str
    kind: str
    text: str
    keys: tuple[Key, ...]
    source: str = ""
    costs: str = ""

    @property
    def title(self) -> str:
        """The part's title, such as `evolution` or `api: privimage`."""
        return f"{self.section}: {self.kind}" if self.kind else self.section

    @property
    def summary(self) -> str:
        """The first paragraph of `text`, which is one line."""
        return self.text.partition("\n\n")[0]


def sections() -> list[ExplainedPart]:
    """The recipe's sections in order, after a part for the keys that stand in no section."""
    fields = dict(Recipe.model_fields)
    top = {name: fields.pop(name) for name in ("name", "seed")}
    parts = [ExplainedPart("recipe", "", _text(Recipe), tuple(_keys(top, {})))]
    for name, field in fields.items():
        model = PrivateSource if name == "private" else field.annotation
        keys = [key for key in _describe(model) if key.name != "kind"]
        if name in ("private", "api", "embedding"):
            default = "as pe init proposes" if name == "embedding" else None
            keys.insert(0, Key("kind", "text", default, "which; its own keys beside it"))
        parts.append(ExplainedPart(name, "", _text(model), tuple(keys)))
    return parts


def kinds() -> list[ExplainedPart]:
    """Everything that a section's `kind` may name: sources, adapters and embeddings."""
    generators = (_plugin("pe.adapters", "api", kind) for kind in plugins("pe.adapters"))
    return [
        *_sources(),
        *sorted(
            generators,
            key=lambda part: [part.source.endswith(one) for one in _SOURCES],
            reverse=True,
        ),
        *(_plugin("pe.embeddings", "embedding", kind) for kind in plugins("pe.embeddings")),
    ]


def _sources() -> list[ExplainedPart]:
    """A part for each source, after one for the keys that all sources of a modality share."""
    models: list[type[PrivateSource]] = []
    faults = []
    for kind in plugins("pe.sources"):
        try:
            models.append(load("pe.sources", kind))
        except PluginError as error:
            faults.append(ExplainedPart("private", kind, str(error), ()))
    bases = dict.fromkeys(base for model in models for base in _of_a_modality(model))
    column = ExplainedPart("private", "each column", _text(Column), tuple(_describe(Column)))
    return [
        *(_source(base, f"all {base.modality.noun}") for base in bases),
        column,
        *map(_source, models),
        *faults,
    ]


def _of_a_modality(model: type[PrivateSource]) -> list[type[PrivateSource]]:
    """The direct bases of a source that all sources of its modality share: `ImageSource`, say."""
    return [
        base
        for base in model.__bases__
        if issubclass(base, PrivateSource) and hasattr(base, "modality")
    ]


def _source(model: type[PrivateSource], name: str = "") -> ExplainedPart:
    """The part of a source, or, under `name`, of a base class of several.

    Keys inherited unchanged are left out.
    """
    general = _describe(PrivateSource)
    common = [
        key for base in _of_a_modality(model) for key in _describe(base) if key not in general
    ]
    keys = tuple(
        key for key in _describe(model) if key.name != "kind" and key not in (*general, *common)
    )
    others = ", ".join(key.name for key in common)
    text = (
        f"{_text(model)}\n\nIt also has {others}, and the keys of all sources (`pe explain "
        f"private`)."
    )
    return ExplainedPart(
        "private",
        name or str(fields_of(model)["kind"].default),
        _text(model) if name else text,
        keys,
    )


def _describe(model: Any) -> list[Key]:
    """All keys of a model. A field without a description takes its meaning from the docstring."""
    return list(_keys(fields_of(model), _meanings(model)))


def _plugin(group: Group, section: str, kind: str) -> ExplainedPart:
    """The part of a plug-in: required keys come first, keys that only concern the machine last."""
    try:
        factory = load(group, kind)
    except PluginError as error:
        return ExplainedPart(section, kind, str(error), ())
    model = settings_of(factory)
    settings = fields_of(model)
    machine = info_of(factory).machine_settings
    fields = sorted(
        settings.items(), key=lambda item: (not item[1].is_required(), item[0] in machine)
    )
    meanings = _meanings(factory) if model is None else _meanings(factory) | _meanings(model)
    keys = tuple(_keys(dict(fields), meanings))
    source = _source_of(factory, settings) if section == "api" else ""
    costs = _costs(factory, settings, plugins(group)[kind].extras)
    return ExplainedPart(section, kind, _text(factory), keys, source, costs)


POOL = "from a pool of public ones"
HOST = "from a host"
SERVER = "from a server of yours"
HERE = "from this machine"
SEVERAL = "from several generators"
FITTED = "from a model fitted on your records"
_SOURCES = (POOL, HOST, SERVER, HERE, SEVERAL, FITTED)


def _source_of(factory: Any, fields: dict[str, FieldInfo]) -> str:
    """Return what a generator's samples come from, such as `images from a host`."""
    info = info_of(factory)
    if hasattr(factory, "plan_releases"):
        source = FITTED
    elif _asks_others(fields):
        source = SEVERAL
    elif info.hosts == ():
        source = (
            POOL if class_default(factory, "public_paths") is not Generator.public_paths else HERE
        )
    else:
        source = SERVER if "base_url" in fields and fields["base_url"].is_required() else HOST
    return f"{info.modality} {source}"


def _asks_others(fields: dict[str, FieldInfo]) -> bool:
    return any(part_among(models_in(field.annotation)) for field in fields.values())


def _costs(factory: Any, fields: dict[str, FieldInfo], extras: Sequence[str]) -> str:
    """Return a sentence on what a plug-in needs and costs, by what it declares and takes."""
    info = info_of(factory)
    is_fitted = hasattr(factory, "plan_releases")
    if _asks_others(fields) and not is_fitted:
        return "Needs and costs what its generators do."
    is_here = info.hosts == ()
    key = fields["key_env"].default if "key_env" in fields else None
    needs = [f"extra {' and '.join(f'`{extra}`' for extra in extras)}"] if extras else []
    needs += [f"a key ({key})"] if key else []
    needs += ["model weights"] if is_here and "model" in fields else []
    needs += ["public images"] if "public" in fields and fields["public"].is_required() else []
    needs += ["a GPU to be fast"] if "device" in fields else []
    fit = f"a share of ε{', and minutes to hours of training' if 'trained' in extras else ''}"
    fit = "the ε of that run again" if info.fitted_before else fit
    costs = fit if is_fitted else "nothing but time" if is_here else "what its host charges"
    return f"Needs {', '.join(needs) or 'nothing more'}; costs {costs}."


def _keys(
    fields: dict[str, FieldInfo],
    meanings: dict[str, str],
    prefix: str = "",
    defaults: Any = None,
) -> Iterator[Key]:
    """The keys of these fields and of sections in them, by dotted names.

    `defaults`: an object with default values.
    """
    for name, field in fields.items():
        default = (
            field.get_default(call_default_factory=True)
            if defaults is None
            else getattr(defaults, name)
        )
        inner = _section(field.annotation)
        if inner is not None:
            section = default if isinstance(default, inner) else None
            whole = meanings.get(name)
            may_lack = section is None and not field.is_required()
            for key in _keys(fields_of(inner), _meanings(inner), f"{prefix}{name}.", section):
                left_out = "none" if may_lack and key.default is None else key.default
                meaning = f"{key.meaning.rstrip('.')}; {name}: {whole}" if whole else key.meaning
                yield replace(key, default=left_out, meaning=meaning)
                whole = None  # said once, at the section's first key
            continue
        models = models_in(field.annotation)
        if len(models) > 1 and all("kind" in fields_of(model) for model in models):
            yield from _of_kinds(
                {str(fields_of(model)["kind"].default): model for model in models},
                f"{prefix}{name}.",
            )
            continue
        extra = field.json_schema_extra
        left_out = None if defaults is None and field.is_required() else _plain(default)
        left_out = (
            str(extra["left_out"]) if isinstance(extra, dict) and "left_out" in extra else left_out
        )
        values = _values_of(field)
        if values:  # else it is no setting of a recipe: a function, say
            yield Key(
                f"{prefix}{name}",
                values,
                left_out,
                field.description or meanings.get(name, ""),
            )


def _of_kinds(kinds: dict[str, type[Any]], prefix: str) -> Iterator[Key]:
    """The keys of a section that has a `kind`.

    The meaning of every other key begins with the kinds that have it.
    """
    yield Key(
        f"{prefix}kind",
        ", ".join(kinds),
        None,
        " ".join(f"`{kind}`: {_text(kinds[kind])}" for kind in kinds),
    )
    owners: dict[Key, list[str]] = {}
    for kind, model in kinds.items():
        for key in _describe(model):
            owners.setdefault(key, []).append(kind)
    for key, of in owners.items():
        if key.name != "kind":
            yield replace(
                key,
                name=f"{prefix}{key.name}",
                meaning=f"({', '.join(of)}) {key.meaning}",
            )


def _section(annotation: Any) -> Any:
    """Return the model that an annotation names, alone or beside None. Otherwise return None."""
    types = [one for one in get_args(annotation) or (annotation,) if one is not type(None)]
    return types[0] if len(types) == 1 and hasattr(types[0], "__pydantic_fields__") else None


def _meanings(item: Any) -> dict[str, str]:
    """Return the meaning of each argument or attribute, from docstrings.

    Those of a class's bases are read, too.
    """
    meanings: dict[str, str] = {}
    for one in reversed(inspect.getmro(item)) if inspect.isclass(item) else (item,):
        if one.__module__.partition(".")[0] not in ("builtins", "pydantic") and one.__doc__:
            parameters = parse(inspect.cleandoc(one.__doc__), style=DocstringStyle.GOOGLE).params
            meanings |= {
                each.arg_name: " ".join((each.description or "").split()) for each in parameters
            }
    return meanings


def _text(item: Any) -> str:
    """The docstring up to its sections (Args, Attributes, …), each paragraph in one line."""
    doc = parse(inspect.getdoc(item) or "", style=DocstringStyle.GOOGLE)
    paragraphs = f"{doc.short_description or ''}\n\n{doc.long_description or ''}".strip().split(
        "\n\n"
    )
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _values_of(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    try:
        schema = TypeAdapter(
            Annotated[(annotation, *field.metadata)] if field.metadata else annotation
        ).json_schema()
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema):
        return ""
    return _values(schema)


def _values(schema: dict[str, Any]) -> str:
    """The values that a JSON schema allows, in words.

    Null is left out, since the default shows it.
    """
    if "anyOf" in schema:
        one, *others = dict.fromkeys(
            _values(each) for each in schema["anyOf"] if each.get("type") != "null"
        )
        return ", or ".join(
            [one, *("a list of such" if each == f"list of {one}" else each for each in others)]
        )
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return f"[{', '.join(map(_values, schema['prefixItems']))}]"
        return f"list of {_values(schema.get('items', {}))}"
    if "$ref" in schema:
        return "mapping"
    if schema.get("format") == "path":
        return "path"
    word = _WORDS.get(schema.get("type", ""), "anything")
    if "minimum" in schema and "maximum" in schema:
        return f"{word} from {_number(schema['minimum'])} to {_number(schema['maximum'])}"
    return " ".join(
        [
            word,
            ", ".join(
                f"{sign} {_number(schema[name])}"
                for name, sign in _BOUNDS.items()
                if name in schema
            ),
        ]
    ).strip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1e6 else f"{value:g}"


def _plain(value: Any) -> str:
    """A default, written as a recipe would give it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_plain, value))}]"
    return str(value) or '""'


def page(parts: list[ExplainedPart]) -> str:
    """The site's page of all keys, docs/recipe.md, which is not in git: a table for each part."""
    order = [part.section for part in parts]
    return template_page(
        "pe.recipe",
        "keys.md.jinja",
        parts=sorted(parts, key=lambda part: order.index(part.section)),
        cell=lambda text: text.replace("|", r"\|"),
    ).rstrip("\n")
