"""Builds the documentation: `make check`, or `python -m sphinx -b html docs docs/_build/html`."""

import doctest

project = "corral"
copyright = "2026, the corral developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.doctest", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "corral"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"Group": "Group"}
napoleon_google_docstring = False
napoleon_use_rtype = False
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["ref.python"]
doctest_global_setup = """
import numpy as np
import corral
import corral.distributed as dist
from corral import TensorDict
"""
doctest_default_flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
doctest_test_doctest_blocks = ""  # docstrings are run by tests/test_imports.py, each in its own module
