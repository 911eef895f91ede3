"""How the site is built: `make docs`. Nothing is loaded from a network, neither here nor by who reads it."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("GPSSM_CACHE", "1")  # the tutorials keep what they have compiled, as the commands do

import gpssm

project = "gpssm"
author = "The gpssm authors"
copyright = author
version = release = gpssm.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "gpssm_site",
]
exclude_patterns = ["_*", "tutorials", "gallery/*.ipynb", "gallery/*.json"]
templates_path = ["_templates"]
nitpicky = True
nitpick_ignore_regex = [("py:class", r"jaxtyping\..*")]  # shapes in the definition of a type

# Pages in Markdown.
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

# The reference. Docstrings write code in single backticks; shapes and types are in their words.
default_role = "py:obj"
autosummary_generate = True
autodoc_typehints = "none"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_display_short_literal_types = True

# Tutorials are run while the site is built; one that fails ends the build.
sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_\w+\.py$",
    "within_subsection_order": "gpssm_site.place",
    "parallel": min(2, os.cpu_count() or 1),
    "min_reported_time": 3600,  # seconds are those of a machine: the same scripts give the same pages
    "write_computation_times": False,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "plot_gallery": "True",
}

html_theme = "furo"
html_title = f"gpssm {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_last_updated_fmt = None
pygments_style = "friendly"
pygments_dark_style = "native"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
