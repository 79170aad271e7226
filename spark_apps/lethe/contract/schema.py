"""The base class of the models of resources, and what a definition says about a field besides its type. Pure.

`lethe.contract.definitions` writes the resource definitions from the models: the docstring of a field is its description, and the
`Keywords` and `Rule`s in its `Annotated` type are its limits. Only the API server checks limits and rules. Parsing does not
repeat that, so that an object that is older than a limit is still read.

    class Window(ApiModel):
        '''When vacuums may run.'''

        cel_rules = (Rule("self.durationSeconds >= 60 || has(self.timeZone)", "durationSeconds needs timeZone", ".timeZone"),)

        schedule: Annotated[str, length(1, 128, pattern="^[0-9*/, -]+$")]
        '''When the window opens.'''
        duration_seconds: Annotated[int, between(60, 604_800)]
        '''How many seconds the window stays open.'''
        next_time: datetime | None = None
        '''When the window opens next.'''

An `int` has the format int64, and `Int32` has int32. A list is a tuple; it is atomic unless `items` or `keyed_by` says otherwise.
A field without a default is required. The docstring of a model describes it wherever a field has none of its own.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


@dataclass(frozen=True)
class Keywords:
    """Keywords of OpenAPI, for a type or a field."""

    pairs: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Rule:
    """A rule in CEL that the API server checks when it admits an object."""

    rule: str
    message: str
    """What the user reads when the rule is broken. Without a period at the end."""
    field_path: str = ""
    """The field that the API server names, such as `.timeZone`; "": the one that has the rule."""


@dataclass(frozen=True)
class Shape:
    """The model that describes a field whose value the code passes on as it is."""

    model: type["ApiModel"]


@dataclass(frozen=True)
class StoredDefault:
    """The API server writes the default into objects although it is an empty text or object.

    It writes all other defaults anyway, and leaves out empty ones without this.
    """


@dataclass(frozen=True)
class Required:
    """The API server refuses objects without the field, although parsing has a default for it."""


@dataclass(frozen=True)
class SameAs:
    """The field means the same as a field of another model, whose description it has."""

    model: type["ApiModel"]
    field: str = ""
    """The name of the other field; "": they have the same name."""


class ApiModel(BaseModel):
    """Base class of everything read from the API, and of the gateway's answers: camelCase, frozen.

    Ignores unknown fields, which a newer definition may have.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")

    cel_rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules about several fields."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties, texts = handler.resolve_ref_schema(schema).get("properties", {}), field_docstrings(cls)
        for name, field in cls.model_fields.items():
            if name in texts and field.alias in properties:
                properties[field.alias]["description"] = texts[name]
        return schema

    def to_document(self) -> dict[str, Any]:
        """The object as Kubernetes stores it, without fields that are None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def field_docstrings(model: type[ApiModel]) -> dict[str, str]:
    """The docstrings of fields, also of inherited ones, as one line each. A field `SameAs` another has the docstring of that one.

    Pydantic's `use_attribute_docstrings` finds them too, but reads the source whenever the model is imported.
    """
    own = [c for c in reversed(model.__mro__) if issubclass(c, ApiModel) and c is not ApiModel]
    texts = {name: text for c in own for name, text in _attribute_docstrings(c).items()}
    return texts | {name: text for name, field in model.model_fields.items() for text in _texts_elsewhere(name, field)}


def _texts_elsewhere(name: str, field: FieldInfo) -> Iterator[str]:
    for same in field.metadata:
        if isinstance(same, SameAs):
            yield field_docstrings(same.model)[same.field or name]


@cache
def _attribute_docstrings(owner: type) -> Mapping[str, str]:
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(found, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, text in pairwise(found.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                texts[name] = " ".join(docstring.split())
    return texts


def keywords(**values: Any) -> Keywords:
    """Keywords by their names in OpenAPI; those that are None are left out."""
    return Keywords(tuple((name, value) for name, value in values.items() if value is not None))


def between(minimum: int, maximum: int | None = None) -> Keywords:
    """Limits of a number, both included."""
    return keywords(minimum=minimum, maximum=maximum)


def length(minimum: int | None = None, maximum: int | None = None, *, pattern: str | None = None) -> Keywords:
    """Limits of the number of characters of a text, and a regular expression that it matches."""
    return keywords(minLength=minimum, maxLength=maximum, pattern=pattern)


def items(
    minimum: int | None = None, maximum: int | None = None, *, kind: Literal["atomic", "set"] = "atomic"
) -> Keywords:
    """Limits of the length of a list, and how a server-side apply merges it."""
    return keywords(minItems=minimum, maxItems=maximum, **{"x-kubernetes-list-type": kind})


def keyed_by(*names: str, maximum: int | None = None) -> Keywords:
    """A list in which no two items have the same values of some required fields, given by their names in the API."""
    return keywords(maxItems=maximum, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": names})


def entries(maximum: int) -> Keywords:
    """The limit of the number of entries of a map."""
    return keywords(maxProperties=maximum)


Int32 = Annotated[int, keywords(format="int32")]

INT_OR_STRING: Final = keywords(**{"x-kubernetes-int-or-string": True}, maxLength=32)
"""A quantity of Kubernetes, such as `128Mi`."""
PRESERVE_UNKNOWN_FIELDS: Final = keywords(**{"x-kubernetes-preserve-unknown-fields": True})
