"""`spec.buffer.csv`: how the CSV files of a buffer are written. Pure."""

from typing import Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class CsvDialect(BaseModel):
    """The default is RFC 4180 with a header."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")

    delimiter: str = ","
    quote: str = '"'  # "": fields are never quoted
    # Before a quote within a quoted field, as Spark writes it; "": such a quote is written twice.
    escape: str = ""
    # A field of exactly this text is null, unless it is quoted. None: an empty field is null, or an empty text in a text column.
    null_text: str | None = None
    header: bool = True  # False: the columns are those of the table, in its order, without the batch column
    ignore_columns: tuple[str, ...] = ()  # by their names in the header; "" is a column without a name


RFC_4180: Final = CsvDialect()
