"""Every function of corral that moves something, in one table: what the ranks call, and what each must have then.

A row calls its function as one rank does, and returns the works to wait for and what checks the result.
"""

from __future__ import annotations

import rows_of_arrays
import rows_of_objects
from rows import OPERATIONS, Operation

__all__ = ["OPERATIONS", "Operation", "rows_of_arrays", "rows_of_objects"]
