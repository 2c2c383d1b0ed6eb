"""Tables of columns, as pandas has them, and as CSV, Parquet and JSON files hold them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np

from corral.arrays.libraries import library_of, to_numpy
from corral.tensordict.base import Base

__all__ = ["columns_of", "entries_of", "frame_of", "pandas", "read_csv", "read_json", "read_parquet", "write_json"]

Columns = dict[str, Any]


def _has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def pandas(what: str) -> Any:
    """Return pandas, or say that `what` needs it."""
    try:
        import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(f"{what} needs pandas, which is not installed: pip install pandas") from error
    return pandas


def columns_of(td: Any, separator: str | None, what: str) -> Columns:
    """Return a TensorDict's entries as columns."""
    columns: Columns = {}
    for key, value in td.items():
        if isinstance(value, Base):
            if separator is None:
                raise ValueError(
                    f"{what}: the entry {key!r} is a TensorDict: pass separator='.' to make columns of its entries"
                )
            for name, column in columns_of(value, separator, what).items():
                columns[f"{key}{separator}{name}"] = column
        elif library_of(value) == "other":
            columns[key] = value
        elif len(value.shape) > 1:
            raise ValueError(
                f"{what}: the entry {key!r} has shape {tuple(value.shape)}, and a column has one dimension"
            )
        else:
            columns[key] = to_numpy(value)
    return columns


def frame_of(td: Any, separator: str | None, what: str) -> Any:
    """Return a TensorDict as a data frame of pandas."""
    return pandas(what).DataFrame(columns_of(td, separator, what))


def entries_of(columns: Columns, separator: str | None, dtype: Any) -> dict[str, Any]:
    """Return columns as the entries of a TensorDict, nested ones where names have the separator."""
    from corral.arrays.operations import cast

    entries: dict[str, Any] = {}
    for name, column in columns.items():
        kind = column.dtype.kind if isinstance(column, np.ndarray) else ""
        if kind == "M":
            column = column.astype("datetime64[ns]").astype(np.int64)
        elif kind and kind in "iufb":
            column = column.copy() if dtype is None else cast(column.copy(), dtype)
        *path, last = name.split(separator) if separator is not None else [name]
        level = entries
        for part in path:
            level = level.setdefault(part, {})
            if not isinstance(level, dict):
                raise ValueError(f"the column {part!r} is there, and so is {name!r}, which would be an entry of it")
        level[last] = column
    return entries


def of_frame(frame: Any) -> tuple[Columns, int]:
    """Return the columns of a data frame of pandas; categories as their codes."""
    columns: Columns = {}
    for name in frame.columns:
        series = frame[name]
        columns[str(name)] = (series.cat.codes if hasattr(series, "cat") else series).to_numpy()
    return columns, len(frame)


def _of_table(table: Any) -> tuple[Columns, int]:
    """Return the columns of a table of pyarrow."""
    import pyarrow  # type: ignore[import-not-found, import-untyped, unused-ignore]

    kinds = pyarrow.types
    columns: Columns = {}
    for name in table.column_names:
        column = table.column(name)
        plain = any(
            test(column.type) for test in (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_timestamp)
        )
        columns[name] = column.to_numpy() if plain else column.to_pylist()
    return columns, table.num_rows


def read_csv(path: Any, **kwargs: Any) -> tuple[Columns, int]:
    """Read a CSV file with pandas, or with pyarrow where that is what there is."""
    if _has("pandas"):
        return of_frame(pandas("from_csv").read_csv(path, **kwargs))
    if not _has("pyarrow"):
        raise ImportError("from_csv needs pandas or pyarrow, and neither is installed: pip install pandas")
    import pyarrow.csv  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return _of_table(pyarrow.csv.read_csv(str(path), **kwargs))


def read_parquet(path: Any, columns: list[str] | None, **kwargs: Any) -> tuple[Columns, int]:
    """Read a Parquet file with pyarrow, or with another engine of pandas."""
    if _has("pyarrow"):
        import pyarrow.parquet  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return _of_table(pyarrow.parquet.read_table(str(path), columns=columns, **kwargs))
    if not _has("pandas"):
        raise ImportError("from_parquet needs pyarrow, which is not installed: pip install pyarrow")
    return of_frame(pandas("from_parquet").read_parquet(path, columns=columns, **kwargs))


def write_parquet(td: Any, path: Any, separator: str | None, **kwargs: Any) -> None:
    """Write a Parquet file with pyarrow, or with another engine of pandas."""
    if _has("pyarrow"):
        import pyarrow.parquet

        table = pyarrow.table(columns_of(td, separator, "to_parquet"))
        pyarrow.parquet.write_table(table, str(path), **kwargs)
        return
    if not _has("pandas"):
        raise ImportError("to_parquet needs pyarrow, which is not installed: pip install pyarrow")
    frame_of(td, separator, "to_parquet").to_parquet(path, **kwargs)


def read_json(path: Any, lines: bool, **kwargs: Any) -> tuple[Columns, int]:
    """Read a JSON file with an array of records, or with one record a line."""
    if _has("pandas"):
        return of_frame(pandas("from_json").read_json(path, lines=lines, **kwargs))
    text = Path(path).read_text()
    records = [json.loads(line) for line in text.splitlines() if line.strip()] if lines else json.loads(text)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError(f"from_json: {path} must hold an array of records, or one record a line if lines=True")
    columns: Columns = {}
    for name in dict.fromkeys(key for record in records for key in record):
        values = [record.get(name) for record in records]
        if all(value is None or isinstance(value, (int, float)) for value in values):
            columns[name] = np.array([np.nan if value is None else value for value in values])
        else:
            columns[name] = values
    return columns, len(records)


def write_json(td: Any, path: Any, separator: str | None, lines: bool, **kwargs: Any) -> None:
    """Write a JSON file with an array of records, or with one record a line."""
    if _has("pandas"):
        frame_of(td, separator, "to_json").to_json(path, orient="records", lines=lines, **kwargs)
        return
    columns = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in columns_of(td, separator, "to_json").items()
    }
    records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    text = "\n".join(map(json.dumps, records)) if lines else json.dumps(records)
    Path(path).write_text(text)
