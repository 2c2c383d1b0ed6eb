"""How the documentation is built. It needs corral installed, and no network."""

import doctest
import sys
from pathlib import Path

import corral

# The pages run functions of docs/programs on several ranks, which import them by name.
sys.path.insert(0, str(Path(__file__).parent / "programs"))

project = "corral"
author = "The corral authors"
project_copyright = "2026, the corral authors"
version = release = corral.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "backends_table.md", "scale_tables.md"]
html_theme = "furo"
html_title = "corral"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "code"  # what docstrings have between single backticks
napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_typehints = "none"  # the signatures of the source, which docstrings explain
autodoc_member_order = "groupwise"

# Docstrings' examples run in the tests, each in its module; here only those that stand on the pages do.
doctest_test_doctest_blocks = ""
doctest_default_flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
doctest_global_setup = """
import numpy as np
import corral
import corral.distributed as dist
from corral import TensorDict
"""
doctest_global_cleanup = """
if dist.is_initialized():
    dist.destroy_process_group()
"""
