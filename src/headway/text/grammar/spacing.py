"""Where space may stand in JSON that a grammar describes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spacing:
    """What stands between two parts of JSON.

    comma, colon  separators, with their space
    between       a regular expression of space that may stand anywhere; it may not be empty. Or none may
    """

    comma: str = ","
    colon: str = ":"
    between: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """As the library reads it beside a schema (`x-guidance`)."""
        spaced = {
            "item_separator": self.comma,
            "key_separator": self.colon,
            "whitespace_flexible": bool(self.between),
        }
        return spaced | ({"whitespace_pattern": self.between} if self.between else {})

    @property
    def heading(self) -> str:
        """As Lark's notation has it, for a whole grammar."""
        return f'%llguidance {{"ignore_once": true}}\n%ignore /{self.between}/\n' if self.between else ""


#: Between two parts of JSON: nothing, a blank, or a new line and its indentation. A model that may put any amount of
#: white space there can go on with it for ever.
FREE = Spacing(between=r" |\n {0,32}|\n\t{0,8}")
#: As chat templates write arguments.
SPACED = Spacing(", ", ": ")
