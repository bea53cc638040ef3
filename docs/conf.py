"""Configuration of the manual: Markdown through MyST, docstrings through numpydoc; built with -n -W."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

import fairsched

project = "fairsched"
author = "The fairsched maintainers"
version = release = fairsched.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"fairsched {release}"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autosummary_generate = False
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# The manual is built without a network, so names of other projects are text and cannot be links. Our own must resolve.
nitpick_ignore_regex = [(r"py:.*", r"(?!fairsched).*")]
# Documented as fairsched.Message; variables of types; what says for itself that it is a mapping; what `matching` makes.
nitpick_ignore = [
    ("py:class", "fairsched.delivery._delivery.Message"),
    ("py:class", "fairsched.consumer.app._H"),
    ("py:class", "fairsched.consumer.app._M"),
    ("py:class", "fairsched.consumer.batching.batch_methods._Batches"),
    ("py:class", "fairsched.consumer.batching.batch_methods._ArrowBatches"),
    ("py:class", "fairsched.config.frozenmapping.FrozenMapping"),
    ("py:class", "fairsched.config.queue_pattern.QueuePattern"),
]


def name_the_class(
    _app: object, _what: str, name: str, _object: object, _options: object, *written: str | None
) -> object:
    """Say which class a signature means: as mere text, it could be the simulator's, or asyncio's."""
    if name.startswith("fairsched.simulator"):
        return None
    meant = "Queue" if name.startswith("fairsched.aio") else "Queue|Publisher"
    return tuple(text and re.sub(rf"(?<![\w.])({meant})\b", r"fairsched.\1", text) for text in written)


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", name_the_class)
