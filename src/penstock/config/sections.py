"""What every table of the settings file is made of."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, StringConstraints

Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=255)]


class Section(BaseModel):
    """A table of the file: frozen, and without room for keys that nobody knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)
