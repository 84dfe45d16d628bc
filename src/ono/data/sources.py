"""Where the rows and channels of a dataset lie in the mesh files it was imported from."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from ono.errors import DataError

SOURCES_FILE = "sources.json"


class FieldSource(BaseModel, frozen=True, extra="forbid"):
    """Where a channel lies in a mesh file: the field, its component, on points or on cells.

    `components` is how many the field has; imports of earlier versions do not say it.
    """

    channel: str
    field: str
    component: int = 0
    components: int | None = None
    at: str = Field(pattern="^(point|cell)$")


class MeshSource(BaseModel, frozen=True, extra="forbid"):
    """The mesh file of one row."""

    file: str
    sha256: str
    points: int


class MeshFields(BaseModel, frozen=True, extra="forbid"):
    """How the fields of mesh files become channels, and back.

    `coordinates` are the columns of the file's points that were kept, `varying` those of them that
    vary within every file; imports of earlier versions do not say these.
    """

    coordinates: tuple[int, ...]
    varying: tuple[int, ...] = ()
    inputs: tuple[FieldSource, ...] = ()
    outputs: tuple[FieldSource, ...] = ()


class Sources(MeshFields, frozen=True, extra="forbid"):
    """The content of `sources.json`: what is needed to write fields back onto the mesh files.

    `rows` follow the rows of the dataset; points keep the order of their file.
    """

    format: int = 1
    folder: str
    rows: tuple[MeshSource, ...]

    @property
    def files(self) -> list[str]:
        """The name of the file of every row."""
        return [row.file for row in self.rows]

    @property
    def fields(self) -> MeshFields:
        """What holds for other files of the same kind too."""
        own = {name: getattr(self, name) for name in MeshFields.model_fields}
        return MeshFields.model_validate(own)

    @classmethod
    def read(cls, dataset: Path) -> Sources | None:
        """Read the sources of a dataset directory; None if it did not come from mesh files."""
        file = dataset / SOURCES_FILE
        try:
            return cls.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            fault = error.errors()[0]
            where = "".join(f"{part}: " for part in fault["loc"])
            raise DataError(
                f"{file} is damaged: {where}{fault['msg']}; import the mesh files again or restore "
                "the file"
            ) from None
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error}; solve that") from None
